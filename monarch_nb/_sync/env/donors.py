"""Finds needed content on a host outside its store: in the host's own environments, in caches of uv and
conda. Content is identified by its digest, never by a version.

A file is read only if its name and its size are those of content that is lacking. It's copied, never linked:
a link would let whoever owns the file change the store, and the store's mode and time would change the file.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from monarch_nb._sync.env import bytecode
from monarch_nb._sync.env.manifest import EXECUTABLE, LINK, Part
from monarch_nb._sync.env.store import Store, WrongContent, default_store, hash_file

_BLOCK_BYTES = 1 << 20
_BYTE_CODE = ".pyc"
_Wanted = dict[tuple[str, int], dict[str, set[bool]]]
"""By name and size of a file: contents that it may have, and whether they are needed as executable files."""


def donor_folders(environ: Mapping[str, str], prefixes: Iterable[str]) -> list[str]:
    """Return folders of this host that may have what an environment consists of.

    Args:
        environ: environment variables: where caches are.
        prefixes: of environments that are known, such as the one this process runs in.
    """
    home = os.path.expanduser("~")
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    uv = environ.get("UV_CACHE_DIR") or f"{cache}/uv"
    data = environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
    pkgs = [each for each in environ.get("CONDA_PKGS_DIRS", "").split(",") if each]
    store = default_store()
    found = [
        *prefixes,
        *sorted(glob.glob(f"{glob.escape(uv)}/archive-v*")),
        environ.get("UV_PYTHON_INSTALL_DIR") or f"{data}/uv/python",
        *(pkgs or [f"{home}/.conda/pkgs"]),
        *_conda_environments(home),
    ]
    real = dict.fromkeys(os.path.realpath(each) for each in found)
    barred = ("/", "/usr", "/usr/local", home)
    return [e for e in real if os.path.isdir(e) and e not in barred and not e.startswith(f"{store}/")]


def _conda_environments(home: str) -> Iterator[str]:
    """Yield environments that conda knows of, and the packages beside them."""
    with suppress(OSError, UnicodeDecodeError):
        with open(f"{home}/.conda/environments.txt", encoding="utf-8") as file:
            for line in file:
                if prefix := line.strip():
                    yield prefix
                    yield os.path.join(prefix, "pkgs")


def take_from(
    store: Store, parts: Sequence[Part], missing: Mapping[str, int], folders: Iterable[str]
) -> dict[str, int]:
    """Copy content that is missing from files in folders to the store; return what was taken: its size by
    its name.

    Args:
        missing: as `place.missing_content` has found it.

    Raises:
        StoreFull: if there's no room.
    """
    wanted = _wanted(parts, missing)
    taken: dict[str, int] = {}
    for sha256, path in _found(wanted, missing, folders):
        with suppress(OSError, WrongContent):  # the file is gone, or was changed at this moment
            _copy(store, path, sha256, wanted[os.path.basename(path), missing[sha256]][sha256])
            taken[sha256] = missing[sha256]
    return taken


def found_in(parts: Sequence[Part], missing: Mapping[str, int], folders: Iterable[str]) -> dict[str, int]:
    """Return the content that `take_from` would take; nothing is written."""
    return {sha256: missing[sha256] for sha256, _ in _found(_wanted(parts, missing), missing, folders)}


def _found(wanted: _Wanted, missing: Mapping[str, int], folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield content that is wanted, each once, and a file that has it."""
    left = set(missing)
    for folder in folders:
        for path, size in _candidates(folder, wanted) if left else ():
            if not wanted[os.path.basename(path), size].keys() & left:
                continue
            with suppress(OSError):
                sha256 = _hash(path)
                if sha256 in left and sha256 in wanted[os.path.basename(path), size]:
                    left.discard(sha256)
                    yield sha256, path


def _wanted(parts: Sequence[Part], missing: Mapping[str, int]) -> _Wanted:
    found: _Wanted = {}
    for part in parts:
        for entry in part.entries:
            if entry.kind != LINK and entry.content in missing and entry.size:
                key = (entry.path.rpartition("/")[2], entry.size)
                modes = found.setdefault(key, {}).setdefault(entry.content, set())
                modes.add(entry.kind == EXECUTABLE)
    return found


def _candidates(folder: str, wanted: _Wanted) -> Iterator[tuple[str, int]]:
    """Yield files whose name and size are those of something wanted; links aren't followed."""
    names = {name for name, _ in wanted}
    stack = [folder]
    while stack:
        with suppress(OSError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                elif entry.name in names and entry.is_file(follow_symlinks=False):
                    with suppress(OSError):
                        size = entry.stat(follow_symlinks=False).st_size
                        if (entry.name, size) in wanted:
                            yield entry.path, size


def _hash(path: str) -> str:
    return hashlib.sha256(_byte_code(path)).hexdigest() if path.endswith(_BYTE_CODE) else hash_file(path)


def _copy(store: Store, path: str, sha256: str, modes: Iterable[bool]) -> None:
    for is_executable in modes:
        if path.endswith(_BYTE_CODE):
            store.add(sha256, [_byte_code(path)], is_executable=is_executable)
            continue
        with open(path, "rb") as file:
            store.add(sha256, iter(lambda: file.read(_BLOCK_BYTES), b""), is_executable=is_executable)


def _byte_code(path: str) -> bytes:
    """Return byte code as it's sent: with the time that all sources of a store have."""
    with open(path, "rb") as file:
        return bytecode.normalised(file.read())
