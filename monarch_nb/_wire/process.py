"""Facts from the kernel about a process: its start time, whether it still runs, how it ended.

A pid alone names nobody, because the kernel gives it to another process later. A pid and the time at which it
started do, on one machine until that boots again, and within one PID namespace.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from contextlib import suppress

_PR_SET_NAME = 15
_PR_SET_PDEATHSIG = 1
_STATE, _START_TIME, _EXIT_CODE = 0, 19, 49
"""Positions among the fields of /proc/PID/stat that follow the name."""


def set_process_name(name: str) -> None:
    """Set the name that ps and top show of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that has started it, or adopted it, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if there's none, or only what is left of
    one (a zombie).
    """
    fields = _stat(pid)
    return None if not fields or fields[_STATE] in "ZX" else int(fields[_START_TIME])


def is_running(pid: int, started: int | None) -> bool:
    """Return whether the process that started then still runs; without a time, whether any process of that
    pid does.
    """
    found = start_time(pid)
    return found is not None and started in (None, found)


def zombie_status(pid: int) -> int | None:
    """Return the wait status of a process that has ended and that its parent hasn't waited for yet; None
    if it can't be had.
    """
    fields = _stat(pid)
    if not fields or fields[_STATE] != "Z" or len(fields) <= _EXIT_CODE:
        return None
    return int(fields[_EXIT_CODE])


def _stat(pid: int) -> list[str]:
    with suppress(OSError):
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    return []


def process_trouble(pid: int, *, stopped_only: bool = False) -> str:
    """Return the kernel's state of a process that can't run, in words; empty if nothing is special."""
    letter = (_stat(pid) or "?")[_STATE]
    if letter in "Tt":
        return f"is stopped by a signal; wake it: kill -CONT {pid}"
    if letter == "D" and not stopped_only:
        return "waits in the kernel for a device or a file system"
    return ""


def describe_status(status: int | None, *, out_of_memory: bool) -> str:
    """Return how a process ended, from its wait status: "was killed by SIGKILL". None: nobody knows.

    Args:
        out_of_memory: whether the kernel has killed some process for lack of memory meanwhile.

    >>> describe_status(9, out_of_memory=True)
    'was killed by the kernel (SIGKILL): out of memory'
    >>> describe_status(0x300, out_of_memory=False)
    'exited with code 3'
    """
    if status is None:
        guess = (
            "the kernel has just killed a process for lack of memory" if out_of_memory else "was it killed?"
        )
        return f"ended without a word ({guess})"
    if not os.WIFSIGNALED(status):
        return f"exited with code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL and out_of_memory:
        return "was killed by the kernel (SIGKILL): out of memory"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(number).name}"
    return f"was killed by signal {number}"


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed on this machine for lack of memory, in all or in a
    cgroup.
    """
    with suppress(OSError, ValueError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class OomKills:
    """The kernel's kills for lack of memory on this machine within the last seconds. The kernel doesn't say
    which processes they were: a process that was killed at the same time is taken for one of them, others
    aren't.
    """

    def __init__(self) -> None:
        self._told = self._seen = count_oom_kills()

    def look(self) -> None:
        """Forget those before the last look. Call it every few seconds."""
        self._told, self._seen = max(self._told, self._seen), count_oom_kills()

    def take_kill(self) -> bool:
        """Return whether there's one that hasn't been taken yet, and take it."""
        if count_oom_kills() <= self._told:
            return False
        self._told += 1
        return True


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    """Wait until a process of this machine has ended; False if it hasn't within `timeout_s`."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(int(timeout_s * 1000)))
    finally:
        os.close(fd)


def machine_id() -> str:
    """Return the id of this machine, since it was booted, and of our PID namespace on it: where pids mean the
    same.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot


def files_id() -> str:
    """Return an id that two processes share that see the same files: of the machine, as long as it runs, and
    the mount namespace.
    """
    try:
        return f"{machine_id()} {os.readlink('/proc/self/ns/mnt')}"
    except OSError:
        return ""
