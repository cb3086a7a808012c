"""A kernel whose mesh loses its controller: the cell says so in one sentence, and so does whatever is typed
next, until it's started anew."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from kernels import RawKernel
from processes import wait_for_exit

SENTENCE = (
    r"MeshEnded: mesh 'felled' has ended: its controller process \(pid \d+ on \S+\) was killed by SIGKILL, "
    r"and its 2 ranks and what they held are lost; "
    r"start it anew: %mesh start felled; what ran on it: monarch-nb history felled"
)
CHILDREN = (
    "import subprocess; print(subprocess.run(['ps', '-o', 'stat=,comm=', '--ppid', "
    "str(__import__('os').getpid())], capture_output=True, text=True).stdout)"
)


@pytest.fixture
def kernel() -> Iterator[RawKernel]:
    opened = RawKernel()
    opened.run("%load_ext monarch_nb")
    yield opened
    opened.close()


def say(kernel: RawKernel, source: str) -> str:
    return kernel.text(kernel.run(source)).strip()


def kill_controller(kernel: RawKernel) -> int:
    pid = int(say(kernel, "print(mesh.status(fresh=False).pid)"))
    os.kill(pid, signal.SIGKILL)
    assert wait_for_exit(pid)
    return pid


def test_a_cell_in_flight_and_every_verb_say_the_same(kernel: RawKernel) -> None:
    say(kernel, "%mesh start felled --procs 2")
    pid = int(say(kernel, "print(mesh.status(fresh=False).pid)"))
    behind = kernel.run("%%mesh --async\nimport time\ntime.sleep(600)")
    cell = kernel.start("%%mesh\nprint('there')")
    os.kill(pid, signal.SIGKILL)
    kernel.finish(cell)
    assert re.search(SENTENCE + r"$", kernel.text(cell))
    assert "Traceback" not in kernel.text(cell) and "TransportClosed" not in kernel.text(cell)
    kernel.wait_for(behind, "was killed by SIGKILL")
    for typed in (
        "%mesh status", "%%mesh\n1", "%mesh heal", "%mesh history", "%mesh stacks", "%mesh why", "%mesh vars",
        "%mesh interrupt", "%mesh lease 1h",
        "%mesh restart -f --ranks 0", "%mesh logs", "%mesh pull x", "%mesh stop", "mesh.run('1')",
        "mesh.execute(print).get()", "mesh.stop().get()",
    ):  # fmt: skip
        assert re.fullmatch(SENTENCE, say(kernel, typed)), typed
    assert re.fullmatch(SENTENCE.removeprefix("MeshEnded: "), say(kernel, "mesh"))
    assert say(kernel, "%mesh list") == "no mesh runs. Start one: %mesh start"
    assert "is ready" in say(kernel, "%mesh start felled --procs 2")
    assert say(kernel, "%%mesh\nrank + 7") == "[0] 7\n[1] 8"
    children = say(kernel, CHILDREN)
    assert "mnb-host" in children
    assert "Z" not in children and "defunct" not in children
    say(kernel, "%mesh stop")


def test_an_idle_kernel_is_told_at_once_and_only_once(kernel: RawKernel) -> None:
    say(kernel, "%mesh start felled --procs 2")
    card = kernel.run("mesh")
    pid = int(say(kernel, "print(mesh.status(fresh=False).pid)"))
    last = kernel.run("1 + 1")
    os.kill(pid, signal.SIGKILL)
    kernel.wait_for(last, "was killed by SIGKILL")
    kernel.wait_for(card, "ranks")
    say(kernel, "2 + 2")
    assert kernel.text(last).count("was killed by SIGKILL") == 1


def test_after_another_has_started_that_name_verbs_go_there(kernel: RawKernel) -> None:
    say(kernel, "%mesh start felled --procs 2")
    other = RawKernel()
    other.run("%load_ext monarch_nb\n%mesh attach felled")
    kill_controller(other)
    assert "is ready" in say(other, "%mesh start felled --procs 1")
    assert say(kernel, "%%mesh\n'here'") == "'here'"
    say(other, "%mesh stop")
    other.close()
