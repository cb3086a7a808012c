"""Removes unused content from a store: prefixes, the longest unused first, then content that no prefix links
to.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.place import forget_prefix
from monarch_nb._sync.env.spare import remove_spares
from monarch_nb._sync.env.store import locked, remove_leftovers

MAX_AGE_S = 30 * 86400.0
MAX_SHARE = 0.2
"""Maximum share of the disk; beyond that, prefixes of any age are removed."""
FRESH_S = 86400.0
"""Newer content may belong to a transfer that will be resumed."""


@dataclass(frozen=True)
class Cleaned:
    """The result of cleaning a store.

    Attributes:
        prefixes: names of prefixes that are gone.
        in_use: names of those that run, and stay.
        num_objects, num_bytes: content that is gone.
    """

    prefixes: tuple[str, ...]
    in_use: tuple[str, ...]
    num_objects: int
    num_bytes: int


def clean(
    root: str, *, max_age_s: float = MAX_AGE_S, max_bytes: int | None = None, fresh_s: float = FRESH_S
) -> Cleaned:
    """Remove from a store what nobody uses.

    Args:
        root: of the store.
        max_age_s: prefixes that weren't used for so long go.
        max_bytes: prefixes go, the longest unused first, until the store has no more; by default a fifth of
            the disk.
        fresh_s: content that came within this time stays, though nothing links to it.

    Raises:
        EnvironmentSyncError: if there's no store, or something is being sent to it.
    """
    if not os.path.isdir(f"{root}/objects"):
        raise EnvironmentSyncError(f"there's no store at {root}: MONARCH_NB_STORE=DIRECTORY says where it is")
    try:
        lock = locked(f"{root}/lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise EnvironmentSyncError(
            f"the store {root} is being written to: try again when that sync is done"
        ) from None
    try:
        remove_leftovers(root)
        remove_spares(root)
        limit = int(shutil.disk_usage(root).total * MAX_SHARE) if max_bytes is None else max_bytes
        gone, in_use = _remove_prefixes(root, max_age_s, limit)
        num, size = _remove_objects(root, time.time() - fresh_s)
        _remove_parts(root, time.time() - max(fresh_s, 0.0), bool(list(_prefixes(root))))
        return Cleaned(tuple(gone), tuple(in_use), num, size)
    finally:
        os.close(lock)


def _remove_prefixes(root: str, max_age_s: float, max_bytes: int) -> tuple[list[str], list[str]]:
    gone, in_use = [], []
    used = _used_bytes(root)
    for last_use, name in sorted(_prefixes(root)):
        if last_use > time.time() - max_age_s and used <= max_bytes:
            continue
        if _remove_prefix(root, name):
            gone.append(name)
            used = _used_bytes(root) if used > max_bytes else used
        else:
            in_use.append(name)
    return gone, in_use


def _prefixes(root: str) -> Iterator[tuple[float, str]]:
    """Yield when each prefix was used last, and its name."""
    for name in os.listdir(f"{root}/envs"):
        if "." not in name:
            with suppress(OSError):
                yield os.stat(f"{root}/envs/{name}.lock").st_mtime, name


def _remove_prefix(root: str, name: str) -> bool:
    path = f"{root}/envs/{name}"
    try:
        fd = locked(path + ".lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    forget_prefix(path)  # first: from now on it isn't complete
    shutil.rmtree(path, ignore_errors=True)
    os.unlink(path + ".lock")
    os.close(fd)
    return True


def _objects(root: str) -> Iterator[os.DirEntry[str]]:
    for folder in os.listdir(f"{root}/objects"):
        with os.scandir(f"{root}/objects/{folder}") as entries:
            yield from entries


def _used_bytes(root: str) -> int:
    """Return the bytes of content that prefixes link to."""
    infos = (entry.stat(follow_symlinks=False) for entry in _objects(root))
    return sum(info.st_size for info in infos if info.st_nlink > 1)


def _remove_objects(root: str, before_s: float) -> tuple[int, int]:
    num = size = 0
    for entry in list(_objects(root)):
        info = entry.stat(follow_symlinks=False)
        if info.st_nlink == 1 and info.st_ctime < before_s:
            os.unlink(entry.path)
            num, size = num + 1, size + info.st_size
    return num, size


def _remove_parts(root: str, before_s: float, is_used: bool) -> None:
    """Remove lists of content, which are sent again if they're needed."""
    for name in os.listdir(f"{root}/parts") if not is_used else ():
        with suppress(OSError):
            if os.stat(f"{root}/parts/{name}").st_ctime < before_s:
                os.unlink(f"{root}/parts/{name}")
