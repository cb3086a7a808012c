"""Selects the files of a layer that are sent: a walk that excludes other layers, the interpreter's tests, and
private files.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from monarch_nb._sync.env.layers import CODE, CONDA, PYTHON, Layer

MAX_SOURCE_BYTES = 100 << 20
"""Larger files in directories of code are data."""
GIT_S = 30.0
_PRIVATE = frozenset(
    ("pip.conf", ".condarc", "conda-meta/state", "condarc", "etc/pip.conf", ".netrc", ".pypirc")
)
"""Files below a layer's root that may contain credentials."""
_OF_NO_USE = re.compile(
    r"lib/python[0-9.]+t?/(test|idlelib|config-[^/]*|.*/(idle_test|tests?))|share/(man|doc)|pkgs|envs"
)
_FOLDERS_NOT_CODE = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache",
     ".tox", ".nox",
     ".ipynb_checkpoints", ".aws", ".ssh", ".hypothesis")
)  # fmt: skip
_SECRET = re.compile(r"\.env(\..*)?|.*\.pem|id_(rsa|dsa|ecdsa|ed25519).*|\.netrc|\.pypirc|.*\.key")
_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
_IMPORTED = (".py", ".so")


class Found(NamedTuple):
    """A file or link of a layer: its path below the layer, and its status."""

    path: str
    info: os.stat_result


def files_of(layer: Layer) -> Iterator[Found]:
    """Yield the files and links of a layer that go; devices, sockets and pipes don't.

    Raises:
        OSError: if the layer can't be read.
    """
    if layer.kind == CODE:
        yield from _code_files(layer)
        return
    skips_folder: Callable[[str, str], bool] = _never
    if layer.kind in (PYTHON, CONDA):
        skips_folder = _is_of_no_use
    for found in _walk(layer, skips_folder):
        is_left = found.path in _PRIVATE or found.path.endswith((".opt-1.pyc", ".opt-2.pyc"))
        if not is_left and (layer.kind != PYTHON or not _is_of_others(layer, found.path)):
            yield found


def folders_of(layer: Layer) -> Iterator[str]:
    """Yield the directories of a layer in which something may be installed, its root first; no byte code's.

    Raises:
        OSError: if the layer can't be read.
    """
    skips = _is_of_no_use if layer.kind in (PYTHON, CONDA) else _never
    folders, without = [("", layer.root)], frozenset(layer.without)
    while folders:
        below, folder = folders.pop()
        yield folder
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                path = below + entry.name
                if entry.name == "__pycache__" or not entry.is_dir(follow_symlinks=False):
                    continue
                if path not in without and not skips(path, entry.name):
                    folders.append((path + "/", entry.path))


def _is_of_others(layer: Layer, path: str) -> bool:
    """Say whether a file of an interpreter is of no use: what is linked statically, scripts of packages that
    don't go."""
    is_script = path.startswith("bin/") and not path.startswith("bin/python")
    return path.endswith(".a") or (is_script and not layer.sites)


def _never(path: str, name: str) -> bool:
    return False


def _is_of_no_use(path: str, name: str) -> bool:
    return bool(_OF_NO_USE.fullmatch(path)) and "site-packages" not in path


def _is_no_code(path: str, name: str) -> bool:
    return name in _FOLDERS_NOT_CODE


def _walk(layer: Layer, skips_folder: Callable[[str, str], bool]) -> Iterator[Found]:
    folders = [("", layer.root)]
    without = frozenset(layer.without)
    while folders:
        below, folder = folders.pop()
        with _opened(folder) as fd, os.scandir(fd) as entries:  # by descriptor: statuses cost a fifth less
            for entry in entries:
                name = entry.name
                path = below + name
                if entry.is_dir(follow_symlinks=False):
                    if path not in without and not skips_folder(path, name):
                        folders.append((path + "/", f"{folder}/{name}"))
                    continue
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                    yield Found(path, info)


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _code_files(layer: Layer) -> Iterator[Found]:
    """Yield source files: those that git knows or would add, with what it ignores and Python may import; else
    all that look like it."""
    listed = _git_files(layer.root)
    if listed is None:
        found: Iterable[Found] = _walk(
            layer, lambda path, name: _is_no_code(path, name) or _is_environment(layer.root, path)
        )
    else:
        found = _with_status(
            layer.root,
            {**dict.fromkeys(listed), **dict.fromkeys(_imported_though_ignored(layer.root, listed))},
        )
    for each in found:
        name = each.path.rpartition("/")[2]
        is_others = any(each.path == w or each.path.startswith(w + "/") for w in layer.without)
        if (
            each.info.st_size <= MAX_SOURCE_BYTES
            and not is_others
            and not _SECRET.fullmatch(name)
            and not name.endswith(".pyc")
        ):
            yield each


def _is_environment(root: str, path: str) -> bool:
    return any(os.path.lexists(os.path.join(root, path, name)) for name in _OF_ENVIRONMENTS)


def _git_files(root: str) -> list[str] | None:
    """Return the files below a directory that git tracks, or would; None if that's no repository, or git
    isn't there.
    """
    command = ["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(
            command, capture_output=True, check=True, timeout=GIT_S, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return [os.fsdecode(path) for path in listed.split(b"\0") if path] or None


def _imported_though_ignored(root: str, listed: Iterable[str]) -> Iterator[str]:
    """Yield modules beside tracked ones that git ignores: `_version.py`, `*_pb2.py`, what was built."""
    for folder in {path.rpartition("/")[0] for path in listed if path.endswith(".py")}:
        with suppress(OSError):
            for name in os.listdir(os.path.join(root, folder)):
                if name.endswith(_IMPORTED):
                    yield f"{folder}/{name}" if folder else name


def _with_status(root: str, paths: Iterable[str]) -> Iterator[Found]:
    for path in paths:
        with suppress(OSError):  # tracked, and deleted meanwhile
            info = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                yield Found(path, info)
