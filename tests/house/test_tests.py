"""What pytest-xdist asks of tests: each process collects the same ones, under the same names."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))
_UNORDERED = frozenset({"set", "frozenset", "glob", "rglob", "iterdir", "listdir", "scandir"})


def test_modules_of_tests_have_names_of_their_own() -> None:
    """Folders of tests are no packages: of two modules of one name the second would be the first."""
    names = Counter(file.name for file in FILES if file.name != "conftest.py")
    assert not [name for name, count in names.items() if count > 1]


def unordered(source: str) -> list[int]:
    """Return the lines of a module on which parameters of tests have no order that all processes share."""
    return [
        values.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.parametrize"
        for values in node.args[1:2]
        if isinstance(values, ast.Set | ast.SetComp) or _called(values) in _UNORDERED
    ]


def _called(node: ast.expr) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def test_parameters_have_an_order() -> None:
    found = {file.relative_to(TESTS).as_posix(): unordered(file.read_text("utf-8")) for file in FILES}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("values", "is_ordered"),
    [
        ("[1, 2]", True), ("{1, 2}", False), ("set(KINDS)", False), ("sorted({1, 2})", True),
        ("Path('.').glob('*')", False), ("sorted(os.listdir('.'))", True), ("[{1, 2}, {3}]", True),
    ],
)  # fmt: skip
def test_what_has_no_order_is_found(values: str, is_ordered: bool) -> None:
    found = unordered(f"@pytest.mark.parametrize('x', {values})\ndef test(x): ...\n")
    assert found == ([] if is_ordered else [1])
