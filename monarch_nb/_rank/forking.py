"""Forks processes that somebody else adopts: a child of this process forks them, and ends.

One child for all of them, for each fork copies the page tables of this process.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, NoReturn

from monarch_nb._wire.process import die_with_parent, wait_until_gone

_PID = struct.Struct("=i")
_FORKS_S = 120.0
"""Time limit of the child that forks: a fork of a large process takes up to 10 ms."""
_ADOPTION_S = 5.0
_RAISED = 1
"""Exit status of a fork whose work raised."""


class Forks(NamedTuple):
    """Processes that were forked.

    Attributes:
        failure: why there are fewer than wanted; empty if there aren't.
    """

    pids: list[int]
    failure: str


class _Caller:
    """The process that called `fork_many`, in the processes that were forked."""

    pidfd = -1


def fork_many(num: int, run: Callable[[int], None]) -> Forks:
    """Fork `num` processes; the nearest child subreaper above this process is their parent when this returns.

    Args:
        run: what each does, called with its number from 0; it exits then.

    Example:
        >>> fork_many(2, print)
        Forks(pids=[..., ...], failure='')
    """
    read_end, write_end = os.pipe()
    caller = os.pidfd_open(os.getpid())
    failure, child = "", 0
    try:
        child = os.fork()
    except OSError as error:
        failure = os.strerror(error.errno or errno.EAGAIN)
    else:
        if child == 0:
            _Caller.pidfd = caller
            os.close(read_end)
            _end_with(lambda: _fork_each(num, run, write_end))
    os.close(caller)
    os.close(write_end)
    if child:
        failure = _reason(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    # Not until the pipe ends: a fork that was stopped holds its other end.
    os.set_blocking(read_end, False)
    found = b""
    with suppress(BlockingIOError):
        found = os.read(read_end, max(1, num * _PID.size))
    os.close(read_end)
    return Forks([pid for (pid,) in _PID.iter_unpack(found)], failure)


def _fork_each(num: int, run: Callable[[int], None], write_end: int) -> int:
    """Fork the processes, and report each. Returns the number of the error that was in the way, or 0."""
    die_with_parent()
    for number in range(num):
        try:
            pid = os.fork()
        except OSError as error:
            return error.errno or errno.EAGAIN
        if pid == 0:
            os.close(write_end)
            _end_with(partial(run, number))
        os.write(write_end, _PID.pack(pid))
    return 0


def _reason(status: int) -> str:
    """Say why the child that forks has ended early."""
    if status < 0:
        return f"the process that forks ended by {signal.Signals(-status).name}"
    if status == _RAISED:  # as an errno it would be EPERM, which no fork gives
        return "the process that forks failed; its traceback is in the host's log"
    return os.strerror(status) if status else ""


def _end_with(work: Callable[[], int | None]) -> NoReturn:
    """Do the work of a fork, then end the process with the status that it returns, whatever happens."""
    status = _RAISED
    try:
        status = work() or 0
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            status = 0  # told to end before or after it served
        else:
            traceback.print_exc()
    finally:
        os._exit(status)


def wait_for_adoption(parent: int) -> bool:
    """Wait until `parent` is this process' parent, in a process that `fork_many` may have forked.

    Returns:
        False if this process shouldn't run: `parent` has ended, or the caller of `fork_many`, which hasn't
        told anybody of this process then.
    """
    now = os.getppid()
    if now != parent and not wait_until_gone(now, _FORKS_S):
        return False
    limit = time.monotonic() + _ADOPTION_S  # it's adopted in the moment in which the other one ends
    while os.getppid() != parent:
        if time.monotonic() > limit:
            return False
        os.sched_yield()
    return not _caller_has_ended()


def _caller_has_ended() -> bool:
    """Say whether the process that had this one forked has ended, if there is one."""
    if _Caller.pidfd < 0:
        return False
    ended = bool(select.select([_Caller.pidfd], [], [], 0)[0])
    os.close(_Caller.pidfd)
    _Caller.pidfd = -1
    return ended
