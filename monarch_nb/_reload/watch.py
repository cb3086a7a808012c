"""Detects that a file of a loaded module may have changed.

inotify queues an event before the write or the rename returns to the editor, so what is read from it right
before a cell misses no save. It sees what happens in a directory, not that the directory's path leads
elsewhere (a link that was switched, a parent that was renamed): so the status of each directory is compared,
too. Where it sees nothing (network file systems: another machine writes), or isn't to be had (the limit of
instances), the status of each file is compared.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

_EVENT = struct.Struct("iIII")
_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE = 0x2, 0x4, 0x8
_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x40, 0x80, 0x100, 0x200
_IN_DELETE_SELF, _IN_MOVE_SELF, _IN_UNMOUNT, _IN_Q_OVERFLOW, _IN_IGNORED = (
    0x400,
    0x800,
    0x2000,
    0x4000,
    0x8000,
)
_MASK = (
    _IN_MODIFY
    | _IN_ATTRIB
    | _IN_CLOSE_WRITE
    | _IN_MOVED_FROM
    | _IN_MOVED_TO
    | _IN_CREATE
    | _IN_DELETE
    | _IN_DELETE_SELF
    | _IN_MOVE_SELF
)
_LOST = _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_UNMOUNT | _IN_Q_OVERFLOW | _IN_IGNORED
"""Events after which further changes may go unreported."""
_READ_BYTES = 1 << 16
_ESCAPED = re.compile(r"\\([0-7]{3})")
_REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "9p",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "gluster",
    "virtiofs",
    "panfs",
    "wekafs",
    "vboxsf",
)

FileStatus = tuple[int, int, int, int, int]
"""Device, inode, size in bytes, mtime and ctime in nanoseconds: every write changes one of them, except
within the clock's resolution.
"""


def file_status(path: str) -> FileStatus | None:
    """Return a status of a file by which a change is seen; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Watch:
    """The watch on directories of loaded modules. Any thread may add directories; one at a time asks for
    changes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._fd = -1
        self._directories: dict[int, str] = {}
        """Directories by inotify's number."""
        self._identities: dict[str, tuple[int, int] | None] = {}
        """Device and inode of each directory that inotify watches."""
        self._below: set[str] = set()
        """Watched directories whose identities aren't compared."""
        self._blind: set[str] = set()
        """Directories that can't be watched."""

    def add(self, directory: str, *, is_below: bool = False) -> None:
        """Watch a directory from now on.

        Args:
            is_below: whether the one above it is looked after, too, so that a rename of it is an event: its
                status isn't asked for each time then.
        """
        if directory in self._identities or directory in self._below or directory in self._blind:
            return
        with self._lock:
            self._add(directory, is_below=is_below)

    def is_blind(self, directory: str) -> bool:
        """Say whether changes of a directory's files are found only by looking at each of them."""
        return directory in self._blind

    def touched(self) -> set[str] | None:
        """Return the paths with events since the last call; None if there may be others."""
        if self._fd < 0:
            return set()
        with self._lock:
            if self._pid != os.getpid():  # a forked process: it would take the parent's events
                self._start_anew()
                return None
            paths: set[str] | None = set()
            for number, mask, name in self._events():
                if mask & _LOST:
                    paths = None
                elif paths is not None:
                    paths.add(os.path.join(self._directories.get(number, ""), name))
            moved = [path for path, identity in self._identities.items() if _identity(path) != identity]
            if moved or paths is None:
                self._start_anew()
                return None
            return paths

    def close(self) -> None:
        """End the watch."""
        with self._lock:
            self._forget()

    # --- with the lock held

    def _add(self, directory: str, *, is_below: bool) -> None:
        if self._fd < 0:
            self._fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        number = -1
        if self._fd >= 0 and not _is_remote(directory):
            number = _libc().inotify_add_watch(self._fd, os.fsencode(directory), _MASK)
        if number < 0:
            self._blind.add(directory)
        else:
            self._directories[number] = directory
            if is_below:
                self._below.add(directory)
            else:
                self._identities[directory] = _identity(directory)

    def _forget(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1
        self._pid = os.getpid()
        self._directories.clear()
        self._identities.clear()
        self._below.clear()
        self._blind.clear()

    def _start_anew(self) -> None:
        directories, below = [*self._identities, *self._blind], list(self._below)
        self._forget()
        for directory in directories:
            self._add(directory, is_below=False)
        for directory in below:
            if os.path.isdir(directory):
                self._add(directory, is_below=True)

    def _events(self) -> Iterator[tuple[int, int, str]]:
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except OSError:  # no more events
                return
            at = 0
            while at < len(data):
                number, mask, _, size = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                yield number, mask, os.fsdecode(data[at : at + size].rstrip(b"\0"))
                at += size


def _identity(directory: str) -> tuple[int, int] | None:
    try:
        found = os.stat(directory)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _is_remote(directory: str) -> bool:
    """Say whether another machine may write there, without an inotify event here."""
    kind = _file_system_of(os.path.realpath(directory))
    return kind.startswith(_REMOTE)


def _file_system_of(path: str) -> str:
    """Return the type of the file system that a path lies on, by /proc/self/mountinfo (proc(5)); "" if it
    can't be known.
    """
    best, kind = "", ""
    with (
        suppress(OSError, ValueError, IndexError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines,
    ):
        for line in lines:
            left, _, right = line.partition(" - ")
            point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4])
            if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
                best, kind = point, right.split(" ", 1)[0]
    return kind
