"""Code between meshes: a cell on several at once, definitions that later meshes and ranks have, too, and
classes that take along what they need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kernels import Notebook


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    opened.run("%mesh start first --gpus 2")
    opened.run("%mesh start second --gpus 1")
    yield opened
    for name in ("first", "second", "third"):
        opened.run(f"%mesh stop {name}")
    opened.close()


def test_a_cell_runs_on_several_meshes_at_once(notebook: Notebook) -> None:
    before = notebook.text("mesh.name")
    shown = notebook.text("%%mesh --name first,second\nprint('hello', world_size)")
    assert shown.splitlines()[:4] == ["first", "[0-1] hello 2", "second", "hello 1"]
    assert notebook.text("%%mesh --name first,second\nimport os") == ""
    assert notebook.text("mesh.name") == before
    failed = notebook.text("%%mesh --name first,second\n1 / (world_size - 1)")
    assert "ERROR" in failed and "mesh 'second': the cell failed on 1 of 1 ranks" in failed
    both = notebook.text("%%mesh --name first,second\nraise ValueError(world_size)")
    assert (
        "mesh 'first': the cell failed on 2 of 2 ranks" in both and "mesh 'second': the cell failed" in both
    )
    assert notebook.text("%%mesh --name first,second --ranks 0\nrank").splitlines() == [
        "first", "[0] 0", "second", "0"
    ]  # fmt: skip


def test_it_meets_across_meshes(notebook: Notebook, tmp_path: object) -> None:
    """They run at the same time: each waits for the other's file."""
    folder = str(tmp_path)
    wait = (
        f"import os, time\nopen(os.path.join({folder!r}, str(world_size)), 'w').close()\n"
        f"while not os.path.exists(os.path.join({folder!r}, str(3 - world_size))): time.sleep(0.01)"
    )
    assert "ERROR" not in notebook.text(f"%%mesh --name first,second --timeout 60\n{wait}")
    assert sorted(os.listdir(folder)) == ["1", "2"]


def test_ctrl_c_reaches_all_of_them(notebook: Notebook, tmp_path: object) -> None:
    fifo = os.path.join(str(tmp_path), "ready")
    os.mkfifo(fifo)
    shown = notebook.text_interrupted(
        f"%%mesh --name first,second\nif world_size == 1: open({fifo!r}, 'w').write('x\\n')\n"
        "import time\nwhile True: time.sleep(0.01)",
        fifo,
    )
    assert "KeyboardInterrupt" in shown
    assert notebook.text("%%mesh --name first,second\nrank").count("0") >= 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--name first,", "a mesh's name is letters"),
        ("--name first,nowhere", "nowhere"),
        ("--name first,second --output x", "are for one mesh"),
        ("--name first,second --memory", "are for one mesh"),
        ("--always --async", "--always or --async, not both"),
        ("--always --ranks 0 --name first", "runs on all ranks"),
    ],
)
def test_what_cant_be_is_said(notebook: Notebook, line: str, message: str) -> None:
    shown = notebook.text(f"%%mesh {line}\n1")
    assert shown.startswith("ERROR Mesh") and message in shown, shown


DEFINE = """%%mesh --name first,second --always
import torch
SCALE = 3
class Policy(torch.nn.Module):
    def forward(self, x):
        return x * SCALE
"""
USE = "float(Policy()(torch.ones(1)))"


def test_definitions_are_on_ranks_that_come_later(notebook: Notebook) -> None:
    assert notebook.text(DEFINE) == ""
    notebook.run("%%mesh --name first --ranks 1\nimport os; os._exit(1)")
    healed = notebook.text("print(*first.heal().messages)")
    assert "rank 1 ran cell #" in healed and "(--always)" in healed
    assert notebook.text(f"%%mesh --name first\n{USE}") == "[0-1] 3.0"
    notebook.run("%mesh resize --name first --force gpus=3")
    assert notebook.text(f"%%mesh --name first\n{USE}") == "[0-2] 3.0"
    notebook.run("%mesh restart --name first --force --ranks 2")
    assert notebook.text(f"%%mesh --name first\n{USE}") == "[0-2] 3.0"
    notebook.run("%mesh start third --gpus 1")
    assert notebook.text(f"%%mesh --name third\n{USE}") == "3.0"


def test_a_definition_that_was_changed_takes_the_olds_place(notebook: Notebook) -> None:
    notebook.run(DEFINE.replace("SCALE = 3", "SCALE = 5"))
    notebook.run("%mesh restart --name second --force --ranks 0")
    assert notebook.text(f"%%mesh --name second\n{USE}") == "5.0"
    assert "ERROR" in notebook.text("%%mesh --name second --always\nbroken = 1 / 0")
    assert notebook.text("second.forget_definitions()") == "1"
    notebook.run("%mesh restart --name second --force --ranks 0")
    assert "NameError" in notebook.text("%%mesh --name second\nPolicy")


def test_a_definition_that_fails_on_new_ranks_is_a_problem(notebook: Notebook, tmp_path: object) -> None:
    mark = os.path.join(str(tmp_path), "mark")
    assert (
        notebook.text(f"%%mesh --name second --always\nimport os\nassert not os.path.exists({mark!r})") == ""
    )
    open(mark, "w").close()
    notebook.run("%%mesh --name second\nimport os; os._exit(1)")
    message = notebook.text("%mesh heal --name second")
    assert "HealError" in message and "which runs always, failed on new ranks: AssertionError" in message
    assert notebook.text("%%mesh --name second\nrank") == "0"
    notebook.run("second.forget_definitions()")


def test_a_pushed_class_takes_what_it_needs_along(notebook: Notebook) -> None:
    notebook.run(
        "import torch, math\nfrom dataclasses import dataclass\nHALF = 0.5\n"
        "def scaled(x): return x * HALF\n"
        "class Base(torch.nn.Module):\n    pass\n"
        "class Net(Base):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(2, 2)\n"
        "    def forward(self, x: torch.Tensor) -> torch.Tensor:\n"
        "        return scaled(x) + math.floor(0.5)\n"
    )
    notebook.run("%mesh push Net scaled --name first")
    assert notebook.text("%%mesh --name first\nNet()(Net().layer.weight.new_ones(1)).item()") == "[0-2] 0.5"
