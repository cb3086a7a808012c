"""A latch: other processes of this machine wait, in the kernel, until something has been done here.

It's a pipe that nobody reads from. One byte in it says that it was done; no byte and no writer, that it never will be. Whoever waits has opened the pipe by
itself, so one write wakes all, and needs no descriptor to be sent.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import NamedTuple

_LOOK_UP_MS = 500
"""How often a thread that waits looks whether it's to be interrupted."""


class Where(NamedTuple):
    """Pid of whoever holds a latch; descriptor and inode of the pipe."""

    pid: int
    fd: int
    inode: int


class Latch:
    """The side that says it's done. May be used again once nobody waits any more.

    Example:
        >>> latch = Latch()
        >>> latch.open()
        >>> wait_for(latch.where)
        True
        >>> latch.close()
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.where = Where(os.getpid(), self._read, os.fstat(self._read).st_ino)

    def open(self) -> None:
        """It's done: let all through, those who come later, too."""
        os.write(self._write, b"1")

    def reset(self) -> None:
        """Begin anew."""
        with suppress(BlockingIOError):
            os.read(self._read, 16)

    def close(self) -> None:
        """If it hasn't been opened, it never will be: who waits learns that."""
        os.close(self._write)
        os.close(self._read)


def wait_for(where: Where) -> bool:
    """Wait until a latch is opened; say whether it was, or whether its holder has given up or has ended. May be interrupted."""
    try:
        own = os.open(f"/proc/{where.pid}/fd/{where.fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.fstat(own).st_ino == where.inode and _wait(own, where.pid)
    finally:
        os.close(own)


def _wait(own: int, pid: int) -> bool:
    poll = select.poll()
    poll.register(own, select.POLLIN)
    if found := poll.poll(0):
        return bool(found[0][1] & select.POLLIN)
    try:
        holder = os.pidfd_open(pid)  # a child that it has forked may hold the pipe, too
    except OSError:
        return bool(poll.poll(0))
    try:
        poll.register(holder, select.POLLIN)
        while not (found := poll.poll(_LOOK_UP_MS)):
            pass
        return bool(dict(poll.poll(0)).get(own, 0) & select.POLLIN)
    finally:
        os.close(holder)
