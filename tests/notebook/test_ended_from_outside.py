"""Somebody else ends a mesh, or a rank of it, while a cell runs there: the cell says who and how, in one
sentence; the journal names ranks and mesh.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from kernels import ANSI, RawKernel

RUNS = "%%mesh\nimport time\nprint('it runs', flush=True)\ntime.sleep(600)"


@pytest.fixture
def kernel() -> Iterator[RawKernel]:
    opened = RawKernel()
    opened.run("%load_ext monarch_nb\n%mesh start outside --procs 2")
    yield opened
    opened.run("%mesh stop -f outside")
    opened.close()


def command(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "monarch_nb", *words], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("source", [RUNS, f"{RUNS}\n%time 1"], ids=["plain", "IPython's"])
def test_a_mesh_that_is_stopped_while_a_cell_runs(kernel: RawKernel, source: str) -> None:
    cell = kernel.start(source)
    kernel.wait_for(cell, "it runs")
    assert "has ended" in command("stop", "outside")
    kernel.finish(cell)
    text = ANSI.sub("", kernel.text(cell))
    sentence = (
        r"MeshEnded: mesh 'outside' was stopped by .+ \(pid \d+\); start it anew: %mesh start outside; "
        r"what ran on it: monarch-nb history outside"
    )
    assert len(re.findall(sentence, text)) == 1, text
    assert "SystemExit" not in text and "Traceback" not in text and "lost" not in text
    line = next(
        each
        for each in command("history", "outside").splitlines()
        if "it runs" in each or "import time" in each
    )
    assert " error " in line


def test_a_rank_that_is_restarted_while_a_cell_runs(kernel: RawKernel) -> None:
    cell = kernel.start(RUNS)
    kernel.wait_for(cell, "it runs")
    command("restart", "outside", "--ranks", "0-1")
    kernel.finish(cell)
    text = ANSI.sub("", kernel.text(cell))
    assert "lost: the process was restarted" in text, text
    assert "SystemExit" not in text and "_rank/main.py" not in text


def test_a_lost_rank_in_the_journal(kernel: RawKernel) -> None:
    kernel.run("%%mesh\nimport os\nif rank: os._exit(3)")
    text = kernel.run_text("%mesh history")
    assert re.search(
        r"lost +\[1\] +lost .* rank 1 of mesh 'outside' exited with code 3 \(pid \d+ on \S+\)", text
    ), text
