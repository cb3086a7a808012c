"""A barrier opens for all who wait; if its holder dies it opens, too, and they know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from waiting import wait_until

from monarch_nb.rdma.broadcast.ready_barrier import BarrierAddress, ReadyBarrier, wait_at

T = 60
FCNTL = "72" if os.uname().machine == "x86_64" else "25"
"""The number of the system call."""
HOLDER = (
    "import sys\nfrom monarch_nb.rdma.broadcast.ready_barrier import ReadyBarrier\nbarrier = ReadyBarrier()\n"
    "print(*barrier.where, flush=True)\nsys.stdin.read()"
)

WAITER = (
    "import ast\nfrom monarch_nb.rdma.broadcast.ready_barrier import wait_at\n"
    "wait_at(ast.literal_eval(input()))"
)


def waiting_at(where: BarrierAddress) -> tuple[threading.Thread, list[bool]]:
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
    with ReadyBarrier() as barrier:
        waiting = [waiting_at(barrier.where) for _ in range(3)]
        assert not any(found for _, found in waiting)
        if done:
            barrier.mark_done()
        barrier.open()
        for thread, _ in waiting:
            thread.join(T)
        assert [found for _, found in waiting] == [[done]] * 3
        assert wait_at(barrier.where) is done  # who comes later doesn't wait
    assert wait_at(barrier.where) is False


def test_a_holder_that_dies_keeps_nobody() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    pid, fd, inode, arrival_pipe = map(int, holder.stdout.readline().split())
    thread, found = waiting_at((pid, fd, inode, arrival_pipe))
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    thread.join(T)
    assert found == [False]


def test_what_was_decided_holds_even_if_the_holder_closes_at_once() -> None:
    barrier = ReadyBarrier()
    waiting = [waiting_at(barrier.where) for _ in range(3)]
    barrier.mark_done()
    barrier.close()
    for thread, _ in waiting:
        thread.join(T)
    assert [found for _, found in waiting] == [[True]] * 3


def test_the_holder_knows_how_many_have_come() -> None:
    with ReadyBarrier() as barrier:
        assert barrier.wait_for_arrivals(0, 0.0)
        assert not barrier.wait_for_arrivals(1, 0.0)
        waiting = [waiting_at(barrier.where) for _ in range(2)]
        assert barrier.wait_for_arrivals(2, T)
        assert not barrier.wait_for_arrivals(3, 0.001)
        barrier.open()
        for thread, _ in waiting:
            thread.join(T)


def test_who_is_interrupted_while_waiting_has_not_come() -> None:
    waiter = subprocess.Popen(
        [sys.executable, "-c", WAITER], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with ReadyBarrier() as barrier:
        assert waiter.stdin is not None
        waiter.stdin.write(f"{barrier.where}\n")
        waiter.stdin.flush()
        assert barrier.wait_for_arrivals(1, T)
        wait_until(
            lambda: _is_waited_for(barrier), "the kernel has it wait for the lock"
        )  # a signal before that would only be seen afterwards
        waiter.send_signal(signal.SIGINT)
        _, text = waiter.communicate()
        assert "KeyboardInterrupt" in text
        assert not barrier.wait_for_arrivals(1, T)


def _is_waited_for(barrier: ReadyBarrier) -> bool:
    inode = barrier.where[2]
    with open("/proc/locks") as locks:
        return any("->" in line and f":{inode} " in line for line in locks)
