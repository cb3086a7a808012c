"""A barrier at which processes of this machine wait in the kernel: opening it needs no message to each of
them.

It's a lock on a file without a name: whoever waits asks for it to be shared. If the one who holds it dies,
the kernel opens the barrier; that it was opened on purpose is written in the file, before. Who comes says so
through a pipe.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from types import TracebackType

BarrierAddress = tuple[int, int, int, int]
"""The holder's pid; descriptor and inode of the file; descriptor of the pipe."""
_OPENED = b"1"
_ARRIVED, _LEFT = b".", b"!"


class ReadyBarrier:
    """The side that opens. Leaving the block, or `close`, opens it for good: whoever has not come by then
    finds it gone.

    Example:
        >>> with ReadyBarrier() as barrier:
        ...     barrier.mark_done()
        ...     barrier.open()
        ...     wait_at(barrier.where)
        True
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("monarch_nb-barrier", os.MFD_CLOEXEC)
        self._arrivals, self._arrival_pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._num_arrived, self._has_lost = 0, False
        self.where: BarrierAddress = (os.getpid(), self._fd, os.fstat(self._fd).st_ino, self._arrival_pipe)
        _lock(self._fd, fcntl.F_WRLCK)

    def wait_for_arrivals(self, num: int, timeout_s: float) -> bool:
        """Wait until `num` processes have arrived. Return False if they haven't within `timeout_s`, or if one
        has left without passing.
        """
        until = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._arrivals, select.POLLIN)
        while True:
            if self._count() >= num:
                return not self._has_lost
            left_s = until - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return False

    def _count(self) -> int:
        with suppress(BlockingIOError):
            arrived = os.read(self._arrivals, 1 << 16)
            self._num_arrived += arrived.count(_ARRIVED)
            self._has_lost = self._has_lost or _LEFT in arrived
        return self._num_arrived

    def mark_done(self) -> None:
        """Record that the awaited work is done; every process that passes the barrier later sees that,
        whatever happens to this one.
        """
        os.write(self._fd, _OPENED)

    def open(self) -> None:
        """Let all processes pass, including those that arrive later."""
        _lock(self._fd, fcntl.F_UNLCK)

    def close(self) -> None:
        """Let all processes pass that have arrived, and remove the barrier."""
        for fd in (self._fd, self._arrivals, self._arrival_pipe):
            os.close(fd)

    def __enter__(self) -> ReadyBarrier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_at(where: BarrierAddress) -> bool:
    """Wait until a barrier opens; return whether the awaited work was done. Signals interrupt the wait."""
    pid, fd, inode, arrival_pipe = where
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(own).st_ino != inode:
            return False
        try:
            _notify(_ARRIVED, f"/proc/{pid}/fd/{arrival_pipe}")
            _lock(own, fcntl.F_RDLCK)
        except BaseException:
            _notify(_LEFT, f"/proc/{pid}/fd/{arrival_pipe}")
            raise
        return os.pread(own, 1, 0) == _OPENED
    finally:
        os.close(own)


def _notify(what: bytes, path: str) -> None:
    with suppress(OSError):  # the pipe is gone: the file tells why
        arrival_pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(arrival_pipe, what)
        finally:
            os.close(arrival_pipe)


def _lock(fd: int, kind: int) -> None:
    """Lock or unlock the file for this descriptor, and wait as long as that takes."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack("hhqqi", kind, os.SEEK_SET, 0, 1, 0))
