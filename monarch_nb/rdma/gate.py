"""A gate that other processes of this machine wait at, in the kernel: no message has to reach each of them when it opens.

It's a lock on a file without a name: whoever waits asks for it to be shared. If the one who holds it dies, the kernel opens the gate; that it was
opened on purpose is written in the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
from types import TracebackType

Where = tuple[int, int, int]
"""Pid and descriptor of who holds it, and the file's inode."""
_OPENED = b"1"


class Gate:
    """The side that opens. Leaving the block closes it for good: whoever has not come by then finds it gone.

    Example:
        >>> with Gate() as gate:
        ...     gate.open()
        ...     wait_at(gate.where)
        True
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("monarch_nb-gate", os.MFD_CLOEXEC)
        self.where: Where = (os.getpid(), self._fd, os.fstat(self._fd).st_ino)
        _lock(self._fd, fcntl.F_WRLCK)

    def open(self, *, done: bool = True) -> None:
        """Let all through; `done`: what they wait for has been done."""
        if done:
            os.write(self._fd, _OPENED)
        _lock(self._fd, fcntl.F_UNLCK)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)


def wait_at(where: Where) -> bool:
    """Wait until a gate opens; say whether what was to be done has been done. May be interrupted."""
    pid, fd, inode = where
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(own).st_ino != inode:
            return False
        _lock(own, fcntl.F_RDLCK)
        return os.pread(own, 1, 0) == _OPENED
    finally:
        os.close(own)


def _lock(fd: int, kind: int) -> None:
    """Lock or unlock the file for this descriptor, however long it takes."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack("hhqqi", kind, os.SEEK_SET, 0, 1, 0))
