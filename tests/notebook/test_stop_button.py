"""Ctrl-C during cells: SIGINT to the ranks, then aborted collectives, then giving up; and the next cell
runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Notebook

SIZE = 3


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb")
    text = opened.text(f"%mesh start stoppable --gpus {SIZE} --init-process-group gloo")
    assert "is ready" in text
    opened.run("%%mesh\nimport os, time, signal, ctypes, asyncio, torch, torch.distributed as dist")
    yield opened
    assert "has ended" in opened.text("%mesh stop -f")
    opened.close()


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = str(tmp_path / "ready")
    os.mkfifo(path)
    return path


def ready(fifo: str, rank: int = 1) -> str:
    """Source that says that the cell runs, on one rank; the file stays open."""
    return f"if rank == {rank}:\n    _ready = open({fifo!r}, 'w'); _ready.write('go\\n'); _ready.flush()\n"


def next_cell_runs(notebook: Notebook) -> None:
    assert notebook.text("%%mesh\nrank + 10") == "[0] 10\n[1] 11\n[2] 12"


def collectives_work(notebook: Notebook) -> None:
    assert notebook.text("%%mesh\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()") == "[0-2] 3.0"


@pytest.mark.parametrize(
    "work",
    [
        "time.sleep(600)",
        "while True: pass",
        "ctypes.CDLL(None).sleep(600)",
        "await asyncio.sleep(600)",
        "!sleep 600",
    ],
)
def test_what_reacts_to_sigint_ends_at_once(notebook: Notebook, fifo: str, work: str) -> None:
    text = notebook.text_interrupted(f"%%mesh\n{ready(fifo)}{work}", fifo)
    assert "ERROR KeyboardInterrupt: ranks 0-2 were interrupted" in text
    assert "hang" not in text
    next_cell_runs(notebook)
    collectives_work(notebook)


def test_an_await_leaves_nothing_in_the_loop(notebook: Notebook, fifo: str) -> None:
    notebook.run(
        "%%mesh\nticks = 0\nasync def forever():\n    global ticks\n    while True:\n"
        "        await asyncio.sleep(0)\n        ticks += 1"
    )
    assert "were interrupted" in notebook.text_interrupted(f"%%mesh\n{ready(fifo)}await forever()", fifo)
    notebook.run("%%mesh\nbefore = ticks\nawait asyncio.sleep(0.01)")
    assert notebook.text("%%mesh\nticks == before") == "[0-2] True"


ALL_REDUCE = (
    "    while True:\n        try:\n            dist.all_reduce(torch.ones(1))\n            break\n"
    "        except KeyboardInterrupt: pass  # it came before the collective had begun\n"
)


def test_a_collective_that_misses_a_rank_is_aborted(notebook: Notebook, fifo: str) -> None:
    text = notebook.text_interrupted(f"%%mesh\n{ready(fifo)}if rank:\n{ALL_REDUCE}", fifo)
    assert "ranks 1-2 did not react to the interrupt: their collectives are aborted" in text
    assert "the process group has been made anew (gloo, 3 ranks)" in text
    assert "ERROR KeyboardInterrupt: ranks 1-2 were interrupted" in text
    next_cell_runs(notebook)
    collectives_work(notebook)


def test_pressed_again_the_next_step_is_taken_at_once(notebook: Notebook, fifo: str) -> None:
    source = (
        f"%%mesh --ranks 1\ntry:\n    _ready = open({fifo!r}, 'w'); _ready.write('go\\n'); _ready.flush()\n"
        "    time.sleep(600)\nexcept KeyboardInterrupt:\n"
        f"    _ready.write('again\\n'); _ready.flush()\n{ALL_REDUCE}"
    )
    text = notebook.text_interrupted(source, fifo, num_presses=2)
    assert "rank 1 did not react to the interrupt: its collectives are aborted" in text
    assert "ERROR KeyboardInterrupt: rank 1 was interrupted" in text
    next_cell_runs(notebook)
    collectives_work(notebook)


STOP = (
    "import subprocess\nif rank == 2:\n"
    "    wait = f'until grep -q \"State:.T\" /proc/{{os.getpid()}}/status; do :; done; echo go > {fifo}'\n"
    "    subprocess.Popen(['sh', '-c', wait])\n"
    "    os.kill(os.getpid(), signal.SIGSTOP)"
)


def test_a_stopped_rank_is_given_up_and_named(notebook: Notebook, fifo: str) -> None:
    pid = int(notebook.text("mesh.status().ranks[2].pid"))
    text = notebook.text_interrupted("%%mesh\n" + STOP.format(fifo=fifo), fifo)
    assert "rank 2 did not react and hangs in this cell" in text
    assert f"rank 2 is stopped by a signal; wake it: kill -CONT {pid}" in text
    assert "%mesh restart --ranks 2 starts it anew" in text
    assert notebook.text("%%mesh --ranks 0-1\n'on'") == "[0-1] 'on'"
    text = notebook.text("%%mesh\n1")
    assert "rank 2 still hangs in cell #" in text
    assert "leave it out: --ranks 0-1;" in text
    os.kill(pid, signal.SIGCONT)
    assert "without a question: %mesh restart -f --ranks 2" in notebook.text("%mesh restart --ranks 2")
    assert "rank 2 of mesh 'stoppable' was restarted, without variables" in notebook.text(
        "%mesh restart -f --ranks 2"
    )
    next_cell_runs(notebook)
    assert notebook.text("%%mesh --ranks 2\n'ticks' in globals()") == "[2] False"


def test_a_busy_rank_is_named_with_its_line(notebook: Notebook, fifo: str) -> None:
    source = (
        "%%mesh --ranks 1\nimport os, time\ndef stubborn():\n    while not hasattr(time, 'enough'):\n"
        "        try:\n            time.sleep(600)\n        except KeyboardInterrupt: pass\ntry:\n   "
        f" _ready = open({fifo!r}, 'w'); _ready.write('go\\n'); _ready.flush()\nexcept "
        "KeyboardInterrupt: pass\nstubborn()"
    )
    text = notebook.text_interrupted(source, fifo)
    assert "rank 1 did not react and hangs in this cell" in text
    assert "in stubborn: " in text
    assert "time.sleep(600)" in text
    assert "stubborn" in notebook.text("%mesh stacks --ranks 1")
    assert "rank 1 of mesh 'stoppable' was restarted" in notebook.text("%mesh restart -f --ranks 1")
    next_cell_runs(notebook)


ACTOR = (
    "from monarch_nb.actor import Actor, endpoint\n"
    "class Sleeper(Actor):\n"
    "    def __init__(self): self.naps = 0\n"
    "    @endpoint\n"
    "    def spin(self, fifo):\n"
    "        self.naps += 1\n        file = open(fifo, 'w') if rank == 1 else None\n"
    "        print('go', file=file, flush=True)\n        while True: pass\n"
    "    @endpoint\n"
    "    def count(self): return self.naps\n"
    "sleeper = mesh.spawn('sleeper', Sleeper)"
)


@pytest.mark.parametrize("wait", ["{}.get()", "await {}", "(await {}).reduce('sum')"])
def test_waiting_for_a_call_is_interrupted_with_its_ranks(notebook: Notebook, fifo: str, wait: str) -> None:
    notebook.run(ACTOR.replace("rank == 1", "__import__('os').environ['RANK'] == '1'"))
    text = notebook.text_interrupted(wait.format(f"sleeper.spin.call({fifo!r})"), fifo)
    assert "KeyboardInterrupt" in text or "CancelledError" in text
    # Some may have been interrupted before they had begun; all are free again.
    assert set(notebook.text("list(sleeper.count.call().get(30).values())")) <= set("[0, 1]")


SLOW_TO_SEND = (
    "from monarch_nb._transport.transport import Transport\n"
    "post_all = Transport.post_all\n"
    "def stays(self, *args, **fields):\n"
    "    post_all(self, *args, **fields)\n"
    "    if fields.get('name') == b'spin': time.sleep(600)\n"
    "import time; Transport.post_all = stays"
)


def test_a_call_that_is_out_is_interrupted_though_nobody_waits_for_it_yet(
    notebook: Notebook, fifo: str
) -> None:
    """On a busy machine the ranks may have begun before the program that calls them has a future."""
    notebook.run(ACTOR.replace("rank == 1", "__import__('os').environ['RANK'] == '1'"))
    notebook.run(SLOW_TO_SEND)
    text = notebook.text_interrupted(f"sleeper.spin.call({fifo!r}).get()", fifo)
    notebook.run("Transport.post_all = post_all")
    assert "KeyboardInterrupt" in text
    assert set(notebook.text("list(sleeper.count.call().get(30).values())")) <= set("[0, 1]")
