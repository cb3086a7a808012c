"""Opens folders below a folder, component by component: a rank may have put a link anywhere, and none is
followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IS_NO_FOLDER = (errno.ELOOP, errno.ENOTDIR)


class Planted(OSError):
    """The error of a folder of the workspace in whose place a link or a file lies."""


@contextmanager
def folder_below(root: int, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Open a folder below `root`, and yield its descriptor.

    Args:
        make: whether missing folders are created.

    Raises:
        Planted: if a link or a file is in the place of a folder; the error names it.
        FileNotFoundError: if the folder doesn't exist.
    """
    at = os.dup(root)
    try:
        for n, part in enumerate(parts):
            below = _open(at, part, "/".join(parts[: n + 1]), make)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _open(at: int, part: str, path: str, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=at)
    try:
        return os.open(part, FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno not in _IS_NO_FOLDER:
            raise
        raise Planted(
            error.errno, f"{path} is {_what(at, part)} there, not a folder: nothing is written through it"
        ) from None


def _what(at: int, name: str) -> str:
    found = status(at, name)
    if found is not None and stat.S_ISLNK(found.st_mode):
        return f"a link to {os.readlink(name, dir_fd=at)}"
    return "a file"


def status(at: int, name: str) -> os.stat_result | None:
    """Return the status of a name in a folder, without following a link; None if the name doesn't exist."""
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None


def open_file(at: int, name: str) -> int:
    """Open a file of a folder for reading; a pipe doesn't block."""
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=at)


def new_file(at: int, name: str, mode: int = 0o600) -> int:
    """Create a file that doesn't exist yet, and open it for writing."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=at)
