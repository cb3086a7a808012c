"""`%mesh stacks` and `%mesh why` in a real kernel and in a terminal; a cell that hangs is explained
without being asked.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import FileLatch, Notebook, RawKernel, Signal

NAME = "whynot"


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    assert "is ready" in opened.text(f"%mesh start {NAME} --gpus 4 --init-process-group gloo")
    opened.run("%%mesh\nimport os, time, torch, torch.distributed as dist")
    yield opened
    assert "has ended" in opened.text("%mesh stop -f")
    opened.close()


def terminal(*words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "monarch_nb", *words], capture_output=True, text=True, check=True
    )
    return ran.stdout


def test_nothing_runs(notebook: Notebook) -> None:
    assert notebook.text("%mesh why").startswith("nothing runs\n\nranks  state")
    assert notebook.text("%mesh stacks") == "ranks 0-3 (asked): idle"
    assert terminal("why", NAME).startswith("nothing runs")
    assert terminal("stacks", NAME) == "ranks 0-3 (asked): idle\n"


def test_the_reason_is_told_while_it_hangs(notebook: Notebook, tmp_path: Path) -> None:
    """Rank 3 waits for this test, the others for rank 3."""
    here, gate = Signal(tmp_path / "here"), FileLatch(tmp_path / "gate")
    source = (
        f"if rank == 3:\n    {here.source}\n    while not os.path.exists({str(tmp_path / 'gate')!r}): "
        "time.sleep(0.01)\ndist.barrier()"
    )
    notebook.run(f"%%mesh --async\n{source}")
    here.wait()
    text = ""
    while "ranks 0-2 wait in barrier" not in text:
        text = notebook.text("%mesh why")
    assert "of the default group" in text and "rank 3 " in text
    assert "next: %mesh stacks --ranks 3" in text
    assert "ranks 0-2 wait in barrier" in terminal("why", NAME, "--ranks", "3")
    assert "rank 3 (asked): cell or function" in notebook.text("%mesh stacks --ranks 3")
    gate.open()
    notebook.run("%mesh result")


def test_a_verb_explains_itself(notebook: Notebook) -> None:
    assert "--native" in notebook.text("%mesh stacks --help")
    assert "which ranks wait for what" in notebook.text("%mesh why --help")


def test_a_cell_that_hangs_is_explained_by_itself(tmp_path: Path) -> None:
    """The cell ends only after the reason has been seen below its output."""
    kernel = RawKernel()
    try:
        kernel.run("%load_ext monarch_nb")
        kernel.run("%mesh start byitself --gpus 2")
        kernel.run("from monarch_nb._why.settings import set_why_after\nset_why_after(1)")
        fifo = Signal(tmp_path / "said")
        cell = kernel.start(
            f"%%mesh\nimport os, threading\nprint('begun')\nif rank == 1: {fifo.source}\n"
            "threading.Event().wait(None if rank else 0)"
        )
        fifo.wait()
        kernel.wait_for(cell, "why: rank 1 waits for a lock", 60)
        text = kernel.text(cell)
        assert "begun" in text and text.count("why: ") == 1
        assert "Event.wait. More: %mesh why" in text
        presser = threading.Thread(target=kernel.manager.interrupt_kernel)
        presser.start()
        kernel.finish(cell)
        presser.join()
        assert kernel.text(cell).count("why: ") == 1
        assert "2" in kernel.text(kernel.run("%%mesh\n1 + 1"))
        kernel.run("%mesh stop -f")
    finally:
        kernel.close()
