"""Directories for the sockets of this user's processes: one for each mesh and machine, below a directory that
only this user can enter.

Host processes take theirs away when they end. One that is killed can't, so whoever makes a new one looks for
those in which nobody listens any more.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress

MAX_SOCKET_PATH = 107
"""The kernel's limit for the path of a unix socket, less the terminating zero."""
_RESERVED = 40
_HOST_SOCKET = "p0"
_YOUNG_S = 10.0


def socket_root() -> str:
    """Return this user's directory for sockets, made with mode 0700 and checked to be ours: in the user's
    runtime directory, or where temporary files go.

    Raises:
        OSError: if neither can be had; the text says why.
    """
    problems = []
    for root in _possible_roots():
        if _is_too_long(root):
            problems.append(f"{root}: this path is too long for a socket")
            continue
        try:
            private_directory(root)
        except OSError as error:
            problems.append(f"{root}: {error.strerror or error}")
        else:
            if os.access(root, os.W_OK | os.X_OK):
                return root
            problems.append(f"{root}: it can't be written to")
    raise OSError(
        "there is no directory for sockets that can be written to; set XDG_RUNTIME_DIR or TMPDIR to one. "
        + "; ".join(problems)
    )


def _possible_roots() -> Iterator[str]:
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        yield os.path.join(base, "monarch_nb")
    name = f"monarch_nb-{os.getuid()}"
    yield os.path.join(tempfile.gettempdir(), name)
    if _is_too_long(os.path.join(tempfile.gettempdir(), name)):  # the path of TMPDIR may be too long
        yield os.path.join("/tmp", name)


def _is_too_long(root: str) -> bool:
    return len(root) > MAX_SOCKET_PATH - _RESERVED


def private_directories(path: str) -> None:
    """Make a directory, and those above it that aren't there, for this user only, whatever the umask is.
    Those that are there stay as they are.
    """
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        private_directories(above)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def private_directory(path: str) -> None:
    """Make `path` a directory that only this user can enter, or raise PermissionError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} is not a directory of this user; remove it, or set XDG_RUNTIME_DIR")
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)


def new_directory() -> str:
    """Make a directory for a mesh's host processes on this machine; what dead ones have left goes."""
    root, mark = socket_root(), _machine_mark()
    for entry in os.scandir(root):
        if entry.name.startswith(mark) and _is_left(entry.path):
            shutil.rmtree(entry.path, ignore_errors=True)
    path = os.path.join(root, mark + secrets.token_hex(4))
    os.mkdir(path, 0o700)
    return path


def _machine_mark() -> str:
    """Return the prefix of this machine's directories: on a shared file system, nobody here can say whether
    somebody there listens.
    """
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:6] + "-"


def _is_left(path: str) -> bool:
    """Return whether host processes were here, and all of them are dead."""
    hosts = []
    with suppress(OSError):
        hosts = [entry.path for entry in os.scandir(path) if entry.is_dir()]
    return bool(hosts) and all(_is_dead(os.path.join(host, _HOST_SOCKET)) for host in hosts)


def _is_dead(path: str) -> bool:
    """Return whether a socket is there that nobody has open; one that has just been made may not be listened
    at yet.
    """
    with suppress(OSError):
        if time.time() - os.stat(path).st_mtime < _YOUNG_S:
            return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
