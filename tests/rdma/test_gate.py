"""A gate opens for all who wait; if its holder dies it opens, too, and they know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from waiting import wait_until

from monarch_nb.rdma.gate import Gate, Where, wait_at

T = 60
FCNTL = "72" if os.uname().machine == "x86_64" else "25"
"""The number of the system call."""
HOLDER = "import sys\nfrom monarch_nb.rdma.gate import Gate\ngate = Gate()\nprint(*gate.where, flush=True)\nsys.stdin.read()"

WAITER = "import ast\nfrom monarch_nb.rdma.gate import wait_at\nwait_at(ast.literal_eval(input()))"

def waiting_at(where: Where) -> tuple[threading.Thread, list[bool]]:
    """Return a thread that waits in the kernel by now, and where it puts what it finds."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(wait_at(where)), daemon=True)
    thread.start()
    while not is_in_fcntl(thread):
        assert thread.is_alive()
    return thread, found


def is_in_fcntl(thread: threading.Thread) -> bool:
    with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
        return file.read().split()[0] == FCNTL


@pytest.mark.parametrize("done", [True, False])
def test_all_who_wait_go_through_together(done: bool) -> None:
    with Gate() as gate:
        waiting = [waiting_at(gate.where) for _ in range(3)]
        assert not any(found for _, found in waiting)
        if done:
            gate.decide()
        gate.open()
        for thread, _ in waiting:
            thread.join(T)
        assert [found for _, found in waiting] == [[done]] * 3
        assert wait_at(gate.where) is done  # who comes later doesn't wait
    assert wait_at(gate.where) is False


def test_a_holder_that_dies_keeps_nobody() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid, fd, inode, bell = map(int, holder.stdout.readline().split())
    thread, found = waiting_at((pid, fd, inode, bell))
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    thread.join(T)
    assert found == [False]


def test_what_was_decided_holds_even_if_the_holder_closes_at_once() -> None:
    gate = Gate()
    waiting = [waiting_at(gate.where) for _ in range(3)]
    gate.decide()
    gate.close()
    for thread, _ in waiting:
        thread.join(T)
    assert [found for _, found in waiting] == [[True]] * 3


def test_the_holder_knows_how_many_have_come() -> None:
    with Gate() as gate:
        assert gate.wait_for(0, 0.0)
        assert not gate.wait_for(1, 0.0)
        waiting = [waiting_at(gate.where) for _ in range(2)]
        assert gate.wait_for(2, T)
        assert not gate.wait_for(3, 0.001)
        gate.open()
        for thread, _ in waiting:
            thread.join(T)


def test_who_is_interrupted_while_waiting_has_not_come() -> None:
    waiter = subprocess.Popen([sys.executable, "-c", WAITER], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with Gate() as gate:
        assert waiter.stdin is not None
        waiter.stdin.write(f"{gate.where}\n")
        waiter.stdin.flush()
        assert gate.wait_for(1, T)
        wait_until(lambda: _is_waited_for(gate), "the kernel has it wait for the lock")  # a signal before that would only be seen afterwards
        waiter.send_signal(signal.SIGINT)
        _, text = waiter.communicate()
        assert "KeyboardInterrupt" in text
        assert not gate.wait_for(1, T)


def _is_waited_for(gate: Gate) -> bool:
    inode = gate.where[2]
    with open("/proc/locks") as locks:
        return any("->" in line and f":{inode} " in line for line in locks)
