"""Checks whether a store can be in a directory: on a file system of this machine, with working hard links,
locks and renames.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, suppress

from monarch_nb._sync.env.mounts import NETWORK, file_system_of

STORE_VARIABLE = "MONARCH_NB_STORE"
_ADVICE = f"start the host with {STORE_VARIABLE}=DIRECTORY, which names one on a disk of its own"
_CANNOT = {errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.ENOLCK}


def on_network(root: str, advice: str = "") -> str:
    """Return why no store can be at `root`, as its file system is another machine's; empty if it isn't.

    Nothing is written: not even the directory needs to be there.

    Args:
        advice: how to name another directory.
    """
    system = file_system_of(root)
    if system.type not in NETWORK:
        return ""
    where = f"{system.type} ({system.source})"
    return (
        f"the store {root} is on {where}, where neither links nor locks can be relied on: {advice or _ADVICE}"
    )


def lacking(root: str, tmp: str, advice: str = "") -> str:
    """Return the features that the file system of a store lacks, as text; empty if it has all that are
    needed. Tries them.

    Args:
        tmp: a directory of our own in it; what is tried is removed.
        advice: how to name another directory.

    Raises:
        OSError: if it can't be tried: no room, no permission.
    """
    name = os.path.basename(tmp)
    made, (there, link) = f"{tmp}/probe", _probes(root, name)
    try:
        with open(made, "xb"):
            pass
        for what, do, source, target in (
            ("rename files", os.rename, made, there),
            ("link files", os.link, there, link),
            ("make symbolic links", os.symlink, there, made),
        ):
            try:
                do(source, target)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                return _cannot(root, what, advice)
        if os.stat(there).st_ino != os.stat(link).st_ino:
            return _cannot(root, "link files", advice)
        return "" if _locks(there) else _cannot(root, "lock files", advice)
    finally:
        with suppress(OSError):
            os.unlink(made)
        remove_probes(root, name)


def remove_probes(root: str, name: str) -> None:
    """Remove what a process has tried, of which `name` is its directory in tmp/."""
    for path in _probes(root, name):
        with suppress(OSError):
            os.unlink(path)


def _probes(root: str, name: str) -> tuple[str, str]:
    return f"{root}/objects/{name}.probe", f"{root}/envs/{name}.probe"


def _cannot(root: str, what: str, advice: str) -> str:
    kind = file_system_of(root).type or "a file system"
    return f"the store {root} is on {kind} that can't {what} there: {advice or _ADVICE}"


def _locks(path: str) -> bool:
    """Say whether a lock that one has keeps another one out."""
    with ExitStack() as stack:
        fds = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for _ in range(2)]
        for fd in fds:
            stack.callback(os.close, fd)
        try:
            fcntl.flock(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            fcntl.flock(fds[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
