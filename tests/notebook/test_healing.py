"""Failures and heals as a notebook shows them."""

from __future__ import annotations

import ast
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Notebook


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    opened = Notebook()
    opened.run("%load_ext monarch_nb\n%mesh start frail --dims gpus=3 --init-process-group gloo")
    yield opened
    assert "has ended" in opened.text("%mesh stop")
    opened.close()


@pytest.fixture(autouse=True)
def healed(notebook: Notebook) -> Iterator[None]:
    """Heal what a test leaves that has failed half-way: the next one is about something else."""
    yield
    if notebook.text("mesh.healthy()") == "False":
        notebook.run("%mesh heal")


def pids(notebook: Notebook) -> list[int]:
    """Return the pids of all ranks, and nothing else: they are sent signals."""
    text = notebook.text("list(mesh.execute(__import__('os').getpid).get().values())")
    found = ast.literal_eval(text) if re.fullmatch(r"\[\d+(, \d+)*\]", text) else None
    assert found is not None, f"no pids: {text}"
    return [int(pid) for pid in found]


def kill(notebook: Notebook, rank: int, number: int = signal.SIGKILL) -> None:
    """Kill a rank; return once the controller has noticed."""
    os.kill(pids(notebook)[rank], number)
    while "True" in notebook.text("mesh.healthy()"):
        pass


def test_a_lost_rank_is_shown_at_once_and_heals_with_a_replay(notebook: Notebook) -> None:
    notebook.run("%%mesh\nimport math\nimport torch, torch.distributed as dist\nx = rank * 10")
    notebook.run("%%mesh\ndef double(y):\n    return 2 * y\nx = double(x)\nx")
    notebook.run("%%mesh --ranks 2\nonly_here = 'two'")
    notebook.run("%%mesh\nprint('only shown')")
    notebook.run("%%mesh --ranks 0\nraise ValueError('this one failed')")
    kill(notebook, 2)
    output = notebook.text("%mesh status")
    assert re.search(r"lost +rank 2", output) and "rank 2 lost: the process was killed by SIGKILL" in output
    text = notebook.text("%%mesh\nx")
    assert "rank 2: lost: the process was killed by SIGKILL" in text
    text = notebook.text("%mesh heal --replay")
    assert "rank 2 started anew" in text
    assert "the process group has been made anew (gloo, 3 ranks)" in text
    assert re.search(r"replayed on rank 2: cells #\d+, #\d+, #\d+$", text, re.M), text
    assert (
        notebook.text("%%mesh\nx, rank == 2 and only_here, double(1)")
        == "[0] (0, False, 2)\n[1] (20, False, 2)\n[2] (40, 'two', 2)"
    )
    reduced = notebook.text("%%mesh\nt = torch.ones(1)\ndist.all_reduce(t)\nt.item()")
    assert reduced == "[0-2] 3.0"
    assert notebook.text("%mesh heal") == "nothing was lost"


def test_a_death_that_nobody_waits_for_is_told_in_the_next_cell(notebook: Notebook) -> None:
    pid = pids(notebook)[0]
    notebook.run("import os, signal, time")
    text = notebook.text(f"os.kill({pid}, signal.SIGSEGV)\nwhile mesh.healthy(): pass")
    assert (
        "unhandled failure in mesh 'frail'" in text
        and f"killed by SIGSEGV (pid {pid}" in text
        and "%mesh heal" in text
    )
    assert "rank 0 started anew" in notebook.text("%mesh heal")


def test_peers_of_a_dead_rank_do_not_hang_in_a_collective(notebook: Notebook) -> None:
    ready = (
        "%%mesh\nimport os, signal, torch, torch.distributed as dist\nt = torch.ones(1)\n"
        "dist.all_reduce(t)\nt.item()"
    )
    assert notebook.text(ready) == "[0-2] 3.0"  # else a slow import may be what the grace ends
    text = notebook.text(
        "%%mesh\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(t)"
    )
    others_failed = "failed on 1 of 3 ranks" not in text  # a slow machine's have only been interrupted
    lost = (
        "rank 1 (first): lost: the process was killed by SIGKILL"
        if others_failed
        else "rank 1: lost: the process was killed by SIGKILL"
    )
    assert lost in text, text
    journal = notebook.text(
        "print(*((e.kind, e.ranks, e.status) for e in mesh.journal.entries(200) if e.kind == "
        "'lost'), sep='\\n')"
    )
    assert journal.splitlines()[-1] == "('lost', '1', 'lost')", journal
    assert "process group has been made anew" in notebook.text("%mesh heal")
    assert notebook.text(ready).startswith("[0-2] 3.0")  # and times, if that was slow


def test_a_loss_comes_first_though_its_peer_has_raised_before_the_controller_heard_of_it(
    notebook: Notebook, tmp_path: Path
) -> None:
    text = notebook.text(
        "%%mesh --ranks 0-1\nimport os, pathlib, signal, time\nfelt = "
        f"pathlib.Path({str(tmp_path)!r}) / 'felt'\nif rank == 0:\n    felt.touch()\n    raise "
        "ConnectionError('a peer has gone')\nwhile not felt.exists(): pass\ntime.sleep(0.3)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert (
        "rank 1 (first): lost: the process was killed by SIGKILL" in text
        and "rank 0: ConnectionError" in text
    ), text
    entry = notebook.text("print([e for e in mesh.journal.entries(200) if e.kind == 'cell'][-1].text())")
    assert entry.splitlines()[-2:] == [
        "rank 1 (first): lost: the process has died",
        "rank 0: ConnectionError: a peer has gone",
    ], entry


def test_a_stopped_rank_is_unresponsive_not_dead(notebook: Notebook) -> None:
    pid = pids(notebook)[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        text = ""
        while "unresponsive" not in text:
            text = notebook.text("%mesh status")
        assert f"rank 1 unresponsive: is stopped by a signal; wake it: kill -CONT {pid}" in text
        assert "idle      ranks 0,2" in text
    finally:
        os.kill(pid, signal.SIGCONT)
    while "unresponsive" in notebook.text("%mesh status"):
        pass
    assert notebook.text("%%mesh --ranks 1\n1") == "[1] 1"


def test_healing_by_itself(notebook: Notebook) -> None:
    assert "it is healed by itself" in notebook.text("%mesh on-failure heal")
    pid = pids(notebook)[2]
    text = notebook.text(
        f"import os, signal, time\nos.kill({pid}, signal.SIGKILL)\nwhile mesh.healthy(): pass\nwhile "
        "not mesh.healthy(): pass\nmesh.status()"
    )
    assert "healed by itself: rank 2 started anew" in text
    notebook.run("%mesh on-failure stop")
    assert len(pids(notebook)) == 3


def test_resize_and_shrink(notebook: Notebook) -> None:
    assert "the mesh is now gpus=4" in notebook.text("%mesh resize gpus=4")
    assert (
        notebook.text("%%mesh\nimport os\nrank, world_size, os.environ['RANK'] == str(rank)").count(
            "4, True)"
        )
        == 4
    )
    assert "%mesh resize -f gpus=3" in notebook.text("%mesh resize gpus=3")
    assert "1 rank left" in notebook.text("%mesh resize -f gpus=3")
    kill(notebook, 0)
    assert "the mesh is now gpus=2" in notebook.text("%mesh shrink")
    assert "[0-1] 2" in notebook.text("%%mesh\nworld_size")
    assert "there is no dimension 'cpus'; the mesh has gpus" in notebook.text("%mesh resize cpus=2")
    assert "expected DIM=SIZE" in notebook.text("%mesh resize 4")
    notebook.run("%mesh resize gpus=99999999")
    last = notebook.text("%mesh history").splitlines()[-1]
    assert "error" in last
    assert "not resized: 99,999,997 processes are too many" in last


MEMORY = Path("/sys/fs/cgroup/memory")


def test_a_kill_for_lack_of_memory_is_named(notebook: Notebook) -> None:
    group = MEMORY / f"monarch_nb_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip(
            "needs a writable cgroup v1 memory controller, to have the kernel kill for lack of memory"
        )
    try:
        (group / "memory.limit_in_bytes").write_text(str(300 << 20))
        (group / "cgroup.procs").write_text(str(pids(notebook)[1]))
        text = notebook.text("%%mesh --ranks 1\nhog = [bytearray(b'x' * (50 << 20)) for _ in range(40)]")
        assert "rank 1: lost: the process was killed by the kernel (SIGKILL): out of memory" in text
        notebook.run("%mesh heal")
    finally:
        while (group / "cgroup.procs").read_text().strip():
            pass
        group.rmdir()


def test_a_rank_that_holds_the_interpreter_is_unresponsive(notebook: Notebook) -> None:
    """PyDLL doesn't release the interpreter's lock: no thread of that rank can answer. The limit is ten
    seconds, hence the length.
    """
    notebook.run("%%mesh --ranks 0 --async\nimport ctypes\nctypes.PyDLL(None).sleep(24)")
    text = ""
    while "unresponsive" not in text:
        text = notebook.text("%mesh status")
    assert "rank 0 unresponsive: has not answered for 10 s" in text
    assert notebook.text("%%mesh --ranks 1\n'the others work'") == "[1] 'the others work'"
    assert "rank 0 has not answered for 10 s" in notebook.text("%mesh result")
    while "unresponsive" in notebook.text("%mesh status"):
        pass


def test_a_spare_takes_a_lost_hosts_place(notebook: Notebook) -> None:
    notebook.run("%mesh start wide --dims hosts=2,gpus=1 --job process --spares 1")
    notebook.run("%%mesh\nx = rank")
    hosts = notebook.text("[(h.hostname, h.pid) for h in mesh.status().hosts]")
    pid = dict(re.findall(r"\('(host1|spare0)', (\d+)\)", hosts))
    os.kill(int(pid["host1"]), signal.SIGKILL)
    while "True" in notebook.text("mesh.healthy()"):
        pass
    text = notebook.text("%mesh heal --replay")
    assert "host host1 replaced" in text and "rank 1 started anew" in text and "replayed on rank 1" in text
    assert (
        notebook.text("%%mesh\nimport os\nx == rank, os.getppid() == " + pid["spare0"])
        == "[0] (True, False)\n[1] (True, True)"
    )
    notebook.run("%mesh stop wide\n%mesh use frail")
