"""Host processes that this program has started: they outlive it, and if one ends before, somebody must wait for it, or its zombie stays.

A thread does, for each: it sleeps in the kernel until the process has ended. Then it lets the zombie lie for a moment, so that the other programs
that are connected can read there how the process has ended.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time

LINGER_S = 0.5


def look_after(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process in the background, and take its zombie away."""
    threading.Thread(target=_wait, args=(process,), name=f"monarch-nb-child-{process.pid}", daemon=True).start()


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        time.sleep(LINGER_S)
    except ChildProcessError:
        pass  # somebody else has waited for it
    process.wait()
