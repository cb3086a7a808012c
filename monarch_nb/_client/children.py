"""The host processes that this program has started. They outlive the program; if one ends before, the program
must reap it, or its zombie stays.

A thread does, for each: it sleeps in the kernel until the process has ended. Then it lets the zombie lie for
a moment, so that the other programs that are connected can read there how the process has ended. This program
needn't hurry: it keeps how each has ended.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time

from monarch_nb._wire.process import zombie_status

LINGER_S = 0.5


_statuses: dict[int, int] = {}
"""Wait statuses of children that have ended, by pid."""


def look_after(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process in the background, so that no zombie stays."""
    _statuses.pop(process.pid, None)
    threading.Thread(
        target=_wait, args=(process,), name=f"monarch-nb-child-{process.pid}", daemon=True
    ).start()


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _note(process.pid)
        time.sleep(LINGER_S)
    except ChildProcessError:
        pass  # another caller has reaped it
    process.wait()


def _note(pid: int) -> None:
    status = zombie_status(pid)
    if status is not None:
        _statuses[pid] = status


def status_of(pid: int) -> int | None:
    """Return the wait status of an ended process, a child of this program's or not; None if it is no longer
    known.

    Looked up twice: a child's zombie may be taken away between the two looks.
    """
    for look in (_statuses.get, zombie_status, _statuses.get):
        status = look(pid)
        if status is not None:
            return status
    return None
