"""The page for people who come from other tools: each of our lines does what it says, in a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Notebook

PAGE = Path(__file__).parents[2] / "notebooks" / "pages" / "coming_from.md"
_ROW = re.compile(r"^\| .* \| `(.+)` \|$", re.MULTILINE)
LINES = [line for line in dict.fromkeys(_ROW.findall(PAGE.read_text())) if not line.startswith("%mesh start")]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    folder = tmp_path_factory.mktemp("coming")
    (folder / "train.py").write_text("import os\nprint('trained', os.environ['WORLD_SIZE'])\n")
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start --gpus 2")
    opened.run(f"%cd -q {folder}")
    opened.run("import monarch_nb.mesh.tasks.joblib\nf = lambda x: 10 * x\nmesh.push({'x': 3})")
    yield opened
    opened.run("%mesh stop")
    opened.close()


def test_all_lines_run(notebook: Notebook) -> None:
    assert len(LINES) > 20
    shown = {}
    for line in LINES:
        shown[line] = notebook.text(line)
        notebook.run("%mesh auto off")
    failed = {line: text for line, text in shown.items() if "ERROR" in text}
    assert not failed
    assert "trained 2" in shown["%mesh run train.py --lr 0.1"]
    assert shown["mesh.map(f, range(8)).get()"] == str([10 * x for x in range(8)])
    assert shown["list(mesh.executor().map(f, [1, 2]))"] == "[10, 20]"
    assert shown["mesh.executor().submit(f, 1).result()"] == "10"
