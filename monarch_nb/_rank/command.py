"""`!command` in a cell: a subprocess whose output is the rank's, and that an interrupt ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

PATIENCE_S = 1.0
"""How long a command may take to end after an interrupt."""


def run_command(command: str) -> int:
    """Run a shell command and wait for it; return its exit code (negative: the signal that ended it).

    Raises:
        KeyboardInterrupt: after it, and what it had started, have been ended.
    """
    flush = getattr(sys.stdout, "flush", None)
    if flush is not None:
        flush()
    process = subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except BaseException:
        _end_family(process)
        raise


def _end_family(process: subprocess.Popen[bytes]) -> None:
    family = [process.pid, *descendants(process.pid)]
    _send(family, signal.SIGINT)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        _send({*family, *descendants(process.pid)}, signal.SIGKILL)
        process.wait()


def _send(pids: list[int] | set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of a process, as the kernel lists them now."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    return found
