"""The pages for people who come from other tools: each line and example of ours shows what its page says, in
a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from kernels import Notebook

INDEX = Path(__file__).parents[2] / "notebooks" / "pages" / "coming_from.md"
PAGES = sorted(INDEX.with_suffix("").glob("*.md"))
TOOLS = {"torchrun", "accelerate", "lightning", "ipyparallel", "ray", "dask", "monarch"}
_ROW = re.compile(r"^\| `.+ \| `([^`]+)` \|(?: `([^`]+)`)? \|$", re.MULTILINE)
_EXAMPLE = re.compile(r"^```python\n(.+?)^```\n```text\n(.+?)^```$", re.MULTILINE | re.DOTALL)
_RANKS = re.compile(r"^\[0-1\] (.*)$")
NEEDS = re.compile(r"^(?:from|import) (accelerate|lightning|joblib)\b", re.MULTILINE)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("coming")
    (folder / "train.py").write_text(
        "import os, sys\nprint('trained', os.environ['WORLD_SIZE'], *sys.argv[1:])\n"
    )
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start --gpus 2")
    opened.run(f"%cd -q {folder}")
    opened.run("f = lambda x: 10 * x")
    yield opened
    opened.run("%mesh stop")
    opened.close()


@pytest.fixture(autouse=True)
def as_before(notebook: Notebook) -> Iterator[None]:
    notebook.run("%mesh auto off")
    notebook.run("mesh.push({'x': 3, 'part': [1, 2]})")
    yield
    notebook.run("%mesh auto off")


def by_rank(text: str) -> list[str]:
    """Return lines for each rank by itself: on a busy machine equal ones may come unfolded."""
    lines: list[str] = []
    for line in text.splitlines():
        found = _RANKS.match(line)
        lines += [f"[{rank}] {found[1]}" for rank in range(2)] if found else [line]
    return sorted(line for line in lines if not line.startswith("time: "))


def test_there_is_a_page_for_each() -> None:
    assert {page.stem for page in PAGES} == TOOLS
    assert all(f"(coming_from/{page.name})" in INDEX.read_text() for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_line_shows_what_is_said(notebook: Notebook, page: Path) -> None:
    text = page.read_text()
    rows = _ROW.findall(text)
    assert len(rows) == sum(line.startswith("| `") for line in text.splitlines()) >= 2
    for line, expected in rows:
        if line.startswith("%mesh start"):
            continue
        shown = notebook.text(line)
        assert "ERROR" not in shown, f"{line}: {shown}"
        assert expected in shown or set(by_rank(expected)) <= set(by_rank(shown)), f"{line}: {shown}"
        notebook.run("%mesh auto off")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_example_shows_what_is_said(notebook: Notebook, page: Path) -> None:
    found = _EXAMPLE.findall(page.read_text())
    assert len(found) == page.read_text().count("```python") == 1
    for source, expected in found:
        missing = [name for name in NEEDS.findall(source) if find_spec(name) is None]
        if missing:
            pytest.skip(f"{missing[0]} isn't installed")
        shown = notebook.text(source)
        # A framework may warn besides, as Lightning does where there's an srun.
        assert set(by_rank(expected)) <= set(by_rank(shown)) and "ERROR" not in shown, shown
