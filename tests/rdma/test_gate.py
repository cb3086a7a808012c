"""A gate opens for all who wait; if its holder dies it opens, too, and they know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from monarch_nb.rdma.gate import Gate, Where, wait_at

T = 60
FCNTL = "72" if os.uname().machine == "x86_64" else "25"
"""The number of the system call."""
HOLDER = "import sys\nfrom monarch_nb.rdma.gate import Gate\ngate = Gate()\nprint(*gate.where, flush=True)\nsys.stdin.read()"


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
        gate.open(done=done)
        for thread, _ in waiting:
            thread.join(T)
        assert [found for _, found in waiting] == [[done]] * 3
        assert wait_at(gate.where) is done  # who comes later doesn't wait
    assert wait_at(gate.where) is False


def test_a_holder_that_dies_keeps_nobody() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid, fd, inode = map(int, holder.stdout.readline().split())
    thread, found = waiting_at((pid, fd, inode))
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    thread.join(T)
    assert found == [False]
