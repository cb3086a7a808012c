"""Disks that are full or otherwise not writable: the required free space, and the messages to users."""

from __future__ import annotations

import errno
import os

from monarch_nb._units import size_text

ROOM_BYTES = 8 << 20
"""Free space required before a write that failed for lack of space is tried again; on a small file system, an
eighth.
"""


def check_room(directory: str) -> None:
    """Raise if there's no room to continue.

    Raises:
        OSError: if there isn't, or nobody can say.
    """
    found = os.statvfs(directory)
    wanted = min(ROOM_BYTES, found.f_blocks * found.f_frsize // 8)
    if found.f_bavail * found.f_frsize < wanted:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), directory)


def why(error: OSError, path: str) -> str:
    """Return the error of writing below `path`, in words that name the disk.

    >>> why(OSError(errno.EROFS, "Read-only file system"), "/proc/self/x")
    'Read-only file system: /proc/self/x'
    """
    reason = error.strerror or type(error).__name__
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{reason}: {path}"
    return f"{'no space left' if error.errno == errno.ENOSPC else 'disk quota exceeded'} on {_disk(path)}"


def _disk(path: str) -> str:
    """Return the mount point of a path, and how full it is."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
    except OSError:
        return path
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    free, whole = (size_text(n * found.f_frsize) for n in (found.f_bavail, found.f_blocks))
    return f"the disk at {path} ({free} of {whole} free)"
