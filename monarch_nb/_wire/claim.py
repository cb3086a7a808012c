"""Claims to names: a mesh's name is claimed by a lock on a file, which the mesh's controller holds as long as
it lives.

The kernel gives the lock to one process, and takes it back when that has ended, however it ended. So there's
nothing to check before acting: who has the claim may write or remove the connection file of that name, and
nobody else. The lock belongs to the open file (OFD), not to the process, so that it can be looked at without
being taken.

Where a file system knows no locks, the file lies beside this user's sockets instead: then a name is claimed
on this machine only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
from contextlib import suppress

from monarch_nb._wire.directory import socket_root

_FLOCK = struct.Struct("@hhqqi4x")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_MAX_NOTE_BYTES = 4096
_EMPTY = b"{}"


class Claim:
    """The claim of this process to a name. `acquire` makes one."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: str, note: bytes = _EMPTY) -> Claim | None:
        """Claim the name of `path`; None if another process holds it.

        Args:
            note: what others may know of us, as JSON (`_protocol/claims`); `holder` returns it.

        Raises:
            OSError: if there can be no such file.
        """
        for candidate in (path, _local(path)):
            try:
                claim = cls._try_lock(candidate)
            except OSError as error:
                if error.errno not in _NO_LOCKS or candidate != path:
                    raise
                continue
            if claim is not None:
                claim.write(note)
            return claim
        return None

    @classmethod
    def _try_lock(cls, path: str) -> Claim | None:
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                _refuse_special(path, fd)
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            if _is_at(path, fd):
                return cls(path, fd)
            os.close(fd)  # the previous holder has just removed the file

    def write(self, note: bytes) -> None:
        """Write another note."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, note, 0)

    @property
    def holds(self) -> bool:
        """Whether the file is still there: without it, another may claim the same name."""
        return _is_at(self._path, self._fd)

    def release(self) -> None:
        """Release the name."""
        if self._fd >= 0:
            if self.holds:
                with suppress(OSError):
                    os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


def holder(path: str) -> bytes | None:
    """Return the note of the process that holds a name; empty if there's no note (yet), None if the name is
    free.
    """
    for candidate in (path, _local(path)):
        with suppress(OSError, ValueError):
            fd = os.open(candidate, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                _refuse_special(candidate, fd)
                found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
                if _FLOCK.unpack(found)[0] != fcntl.F_UNLCK:
                    return os.pread(fd, _MAX_NOTE_BYTES, 0)
            finally:
                os.close(fd)
    return None


def _local(path: str) -> str:
    return os.path.join(
        socket_root(), f"claim-{hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:16]}"
    )


def _refuse_special(path: str, fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise FileExistsError(errno.EEXIST, "this is no plain file; remove it", path)


def _is_at(path: str, fd: int) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
