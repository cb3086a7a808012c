"""How well the code can be read, in figures: `python tests/house/measure.py [PACKAGE ...]` prints them as a
table.

Other packages are looked for where Python would import them, to compare. Nothing is imported; all is read
from sources.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

OWN = "monarch_nb"
SETTINGS = Path(__file__).parents[2] / "pyproject.toml"


def _rooms() -> tuple[tuple[str, ...], ...]:
    """Return the rooms, the lowest first, as import-linter's contract states them: those beside each other
    know nothing of each other.
    """
    contract = tomllib.loads(SETTINGS.read_text())["tool"]["importlinter"]["contracts"][0]
    return tuple(tuple(room.strip() for room in layer.split("|")) for layer in reversed(contract["layers"]))


ORDER = _rooms()
HEIGHT = {room: height for height, rooms in enumerate(ORDER) for room in rooms}
MAX_COLUMNS = 110
_PRAGMA = re.compile(r"\s+# (?:type: ignore|noqa).*$")
"""What tells a tool something at the end of a line doesn't count, as with ruff."""
_ANY_DICT = re.compile(r"\b(?:dict|Mapping|MutableMapping)\[str, Any\]")
_PYTHONS_OWN = frozenset({"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"})
"""Documented, whatever they're called: of named tuples, `os` and `sys`."""


@dataclass(frozen=True)
class Import:
    """One module that another one imports."""

    source: str
    target: str
    line: int
    is_deferred: bool


@dataclass
class Module:
    """A source file."""

    name: str
    text: str
    is_package: bool = False
    tree: ast.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.text.splitlines()

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All of them, also methods and those in others."""
        return [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def own_names(self) -> set[str]:
        """Private names of attributes that this module gives or defines."""
        given = {
            n.attr
            for n in ast.walk(self.tree)
            if isinstance(n, ast.Attribute) and _is_self(n.value) and isinstance(n.ctx, ast.Store)
        }
        defined = {
            n.name
            for n in ast.walk(self.tree)
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        named = {
            n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        return given | defined | named

    def statements(self) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
        """Yield what runs imports, and whether it's deferred. What only type checkers read doesn't count."""
        yield from _imports_in(self.tree.body, False)


def _imports_in(
    body: Iterable[ast.AST], is_deferred: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, is_deferred
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _imports_in(node.orelse, is_deferred)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports_in(ast.iter_child_nodes(node), is_deferred or inside)


@dataclass(frozen=True)
class House:
    """A package's sources."""

    package: str
    modules: Mapping[str, Module] = field(repr=False)

    @classmethod
    def read(cls, package: str) -> House:
        """Read a package from where Python would import it.

        Raises:
            ModuleNotFoundError: if there's none of that name.
        """
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"no package {package!r} here")
        return cls.at(Path(next(iter(spec.submodule_search_locations))), package)

    @classmethod
    def at(cls, folder: Path, package: str) -> House:
        """Read a package from a folder, without its tests."""
        found = {}
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            if not {"tests", "_tests", "test"} & set(parts):
                is_package = parts[-1] == "__init__"
                name = ".".join((package, *parts[: -1 if is_package else None]))
                found[name] = Module(name, file.read_text("utf-8"), is_package)
        return cls(package, found)

    @cached_property
    def num_lines(self) -> int:
        """Lines of all modules."""
        return sum(len(m.lines) for m in self.modules.values())

    @cached_property
    def imports(self) -> list[Import]:
        """Which module imports which, both of this package."""
        return [
            Import(module.name, target, node.lineno, is_deferred)
            for module in self.modules.values()
            for node, is_deferred in module.statements()
            for target in self._targets(module, node)
            if target != module.name
        ]

    def _targets(self, module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in self.modules)
            return
        base = node.module or ""
        if node.level:
            parts = module.name.split(".")
            above = parts[: len(parts) - node.level + module.is_package]
            base = ".".join(filter(None, (*above, node.module)))
        found = {
            f"{base}.{alias.name}" if f"{base}.{alias.name}" in self.modules else base for alias in node.names
        }
        yield from sorted(found & set(self.modules))

    # --- figures

    def against_order(self) -> list[Import]:
        """Return imports of a room that doesn't lie below the one that imports."""
        found = []
        for each in self.imports:
            source, target = _room(each.source), _room(each.target)
            if source != target and {source, target} <= set(HEIGHT) and HEIGHT[target] >= HEIGHT[source]:
                found.append(each)
        return found

    def circles(self) -> list[set[str]]:
        """Return modules that import each other, directly or by others, largest first."""
        graph: dict[str, set[str]] = {name: set() for name in self.modules}
        for each in self.imports:
            graph[each.source].add(each.target)
        return sorted((c for c in _components(graph) if len(c) > 1), key=len, reverse=True)

    def deferred(self) -> list[Import]:
        """Return imports of this package's modules that functions do."""
        return [each for each in self.imports if each.is_deferred]

    def foreign_private(self) -> list[tuple[str, int, str]]:
        """Return where a module uses private attributes that another one has given: module, line, what."""
        return [
            (m.name, n.lineno, ast.unparse(n))
            for m in self.modules.values()
            for n in ast.walk(m.tree)
            if isinstance(n, ast.Attribute)
            and _is_private(n.attr)
            and not _is_self(n.value)
            and n.attr not in m.own_names
        ]

    def any_dicts(self) -> list[tuple[str, int, str]]:
        """Return where a type says no more than `dict[str, Any]` or `Mapping[str, Any]`: module, line, text.

        A line is listed as often as it says so.
        """
        return [
            (m.name, number, line.strip())
            for m in self.modules.values()
            for number, line in enumerate(m.lines, 1)
            for _ in _ANY_DICT.findall(line)
        ]

    def long_lines(self) -> int:
        """Return how many lines are longer than they may be."""
        return sum(
            len(_PRAGMA.sub("", line)) > MAX_COLUMNS for m in self.modules.values() for line in m.lines
        )

    def function_lines(self) -> list[int]:
        """Return how many lines functions have, without docstrings."""
        return sorted(_num_lines(f) for m in self.modules.values() for f in m.functions) or [0]

    def per_1000(self, number: int) -> float:
        """Return a number per 1,000 lines."""
        return round(1000 * number / max(1, self.num_lines), 2)


FIGURES: dict[str, Callable[[House], float]] = {
    "modules": lambda house: len(house.modules),
    "lines": lambda house: house.num_lines,
    "imports against the stated order": lambda house: len(house.against_order()),
    "modules in the largest circle of imports": lambda house: max(map(len, house.circles()), default=0),
    "deferred imports of own modules": lambda house: len(house.deferred()),
    "foreign private accesses per 1,000 lines": lambda house: house.per_1000(len(house.foreign_private())),
    "dict[str, Any] per 1,000 lines": lambda house: house.per_1000(len(house.any_dicts())),
    f"lines over {MAX_COLUMNS} columns per 1,000": lambda house: house.per_1000(house.long_lines()),
    "lines of a function, median": lambda house: statistics.median(house.function_lines()),
    "lines of a function, nine in ten have at most": lambda house: house.function_lines()[
        int(len(house.function_lines()) * 0.9)
    ],
}


def _room(module: str) -> str:
    return [*module.split("."), ""][1]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _PYTHONS_OWN


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    whole = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return whole
    first = function.body[0]
    return whole - ((first.end_lineno or first.lineno) - first.lineno + 1)


def _components(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of a graph (Kosaraju's way: by the order of leaving,
    against the arrows).
    """
    against: dict[str, set[str]] = {node: set() for node in graph}
    for node, targets in graph.items():
        for target in targets:
            against[target].add(node)
    left: list[str] = []
    seen: set[str] = set()
    for root in graph:
        left += _leaving(root, graph, seen)
    found, seen = [], set()
    for root in reversed(left):
        if root not in seen:
            found.append(set(_leaving(root, against, seen)))
    return found


def _leaving(root: str, graph: Mapping[str, set[str]], seen: set[str]) -> list[str]:
    """Return what can be reached and hasn't been seen, in the order in which a search that goes deep first
    leaves it.
    """
    if root in seen:
        return []
    seen.add(root)
    order: list[str] = []
    path = [(root, iter(graph[root]))]
    while path:
        target = next((t for t in path[-1][1] if t not in seen), None)
        if target is None:
            order.append(path.pop()[0])
        else:
            seen.add(target)
            path.append((target, iter(graph[target])))
    return order


def table(houses: Iterable[House]) -> str:
    """Return the figures of houses beside each other."""
    houses = list(houses)
    rows = [["", *(house.package for house in houses)]]
    rows += [
        [name, *(f"{figure(house):g}" if name != "lines" else f"{figure(house):,}" for house in houses)]
        for name, figure in FIGURES.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            c.ljust(w) if not i else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> None:
    """Print the table; with `--where`, also what it counts of this package."""
    names = [name for name in sys.argv[1:] if name != "--where"]
    own = House.at(Path(__file__).parents[2] / OWN, OWN)
    print(table([own, *map(House.read, names)]))
    if "--where" in sys.argv:
        for each in own.against_order():
            print(
                f"against the order: {each.source}:{each.line} imports "
                f"{each.target}{' (deferred)' if each.is_deferred else ''}"
            )
        for circle in own.circles():
            print(f"circle of {len(circle)}: {', '.join(sorted(circle))}")
        for module, line, what in own.foreign_private():
            print(f"private of another: {module}:{line} {what}")
        for module, line, what in own.any_dicts():
            print(f"dict of anything: {module}:{line} {what}")


if __name__ == "__main__":
    main()
