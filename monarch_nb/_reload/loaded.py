"""Records the source from which each of the user's modules was executed, at its import, and finds the modules
whose files have changed since.

A module is the user's if its file lies in no library: not with Python's own modules, not in site-packages,
and not in this package.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from monarch_nb._frames.elsewhere import notebook_path, with_notebook_path
from monarch_nb._reload.watch import FileStatus, Watch, file_status

if TYPE_CHECKING:
    import ast

GRAIN_NS = 2_000_000_000
"""A file read within this time after its last change may have changed again with equal times: clocks of file
systems are coarse.
"""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}


class Loaded(msgspec.Struct):
    """A loaded module of the user's.

    Attributes:
        source: the source that was executed; None for an extension module.
        status: status of the file before it was read.
        read_ns: time of the read, by the clock of `time.time_ns`.
    """

    name: str
    path: str
    source: bytes | None
    status: FileStatus | None
    read_ns: int
    imported: tuple[tuple[str, str, str], ...] | None = None
    """Its imports by name, once they were requested."""
    tree: ast.Module | None = None
    """The syntax tree of `source`, if it was parsed before, by the last reload."""

    @property
    def known_as(self) -> str:
        """The path by which the notebook knows its file."""
        return notebook_path(self.path)

    @property
    def is_certain(self) -> bool:
        """Say whether an equal status implies an equal file."""
        return self.status is not None and max(self.status[3:]) + GRAIN_NS < self.read_ns


class Changed(msgspec.Struct, frozen=True):
    """A loaded module whose file differs from the executed source.

    Attributes:
        source: present content of the file; None if it is gone, or can't be read.
    """

    loaded: Loaded
    source: bytes | None

    @property
    def is_gone(self) -> bool:
        """Say whether the file no longer exists: the loaded code is all there is."""
        return (
            self.loaded.source is not None and self.source is None and not os.path.lexists(self.loaded.path)
        )


_modules: dict[str, Loaded] = {}
_num_loads = 0
_watch = Watch()
_get_code = SourceFileLoader.get_code
_create_module = ExtensionFileLoader.create_module


def install() -> None:
    """Record modules at their import from now on, and those that are loaded already: their files are assumed
    to be unchanged.
    """
    if SourceFileLoader.get_code is _noting_get_code:
        return
    SourceFileLoader.get_code = _noting_get_code  # type: ignore[method-assign, assignment]
    ExtensionFileLoader.create_module = _noting_create_module  # type: ignore[method-assign]
    for name, module in list(sys.modules.items()):
        _note_loaded(name, module)


def uninstall() -> None:
    """Stop recording modules."""
    SourceFileLoader.get_code = _get_code  # type: ignore[method-assign]
    ExtensionFileLoader.create_module = _create_module  # type: ignore[method-assign]
    for table in (_modules, _by_path, _unsure):
        table.clear()
    _watch.close()


def num_loads() -> int:
    """Return how often files of the user's were loaded, by an import or a reload."""
    return _num_loads


def known_modules() -> dict[str, Loaded]:
    """Return the user's modules by name, in the order of their import."""
    return dict(_modules)


def changed_modules(paths: Collection[str] | None = None, *, thoroughly: bool = False) -> list[Changed]:
    """Return the loaded modules whose files have changed, in the order of their import.

    Args:
        paths: only these files or folders.
        thoroughly: compare all of each file, whatever its status says.
    """
    found = []
    for loaded in _suspects(thoroughly):
        changed = _look_at(loaded, thoroughly)
        if changed is not None:
            _unsure.add(loaded.name)
            found.append(changed)
        elif not _watch.is_blind(os.path.dirname(loaded.path)) and loaded.status is not None:
            _unsure.discard(loaded.name)
    return found if paths is None else [c for c in found if _is_among(c.loaded.known_as, paths)]


@contextmanager
def imported_anew() -> Iterator[None]:
    """Import the user's modules anew within the block, as a program of its own does; then restore the old
    ones.

    Extension modules stay: most can be loaded once only.
    """
    before = {name: loaded for name, loaded in _modules.items() if loaded.source is not None}
    modules = {name: sys.modules.pop(name) for name in before if name in sys.modules}
    for name in before:
        del _modules[name]
    there = set(_modules)
    try:
        yield
    finally:
        for name in [
            name for name, loaded in _modules.items() if loaded.source is not None and name not in there
        ]:
            del _modules[name]
            sys.modules.pop(name, None)
        for name, loaded in before.items():
            _modules[name] = loaded
            _unsure.add(name)  # the file may have changed meanwhile
        sys.modules.update(modules)


_unsure: set[str] = set()
"""Modules that are checked each time, since events about them aren't reliable."""
_by_path: dict[str, set[str]] = {}


def _suspects(thoroughly: bool) -> list[Loaded]:
    """Return the modules whose files may have changed, in the order of their import."""
    touched = _watch.touched()
    if thoroughly or touched is None:
        return list(_modules.values())
    if not touched and not _unsure:
        return []
    names = _unsure.union(*(_by_path[path] for path in touched if path in _by_path))
    return [loaded for name, loaded in list(_modules.items()) if name in names] if names else []


def _note(loaded: Loaded) -> None:
    """Record a module that has been executed."""
    _count()
    _modules.pop(loaded.name, None)
    _modules[loaded.name] = loaded
    _look_after(loaded)
    _unsure.add(loaded.name)


def _count() -> None:
    global _num_loads
    _num_loads += 1


def _look_after(loaded: Loaded) -> None:
    """Watch the directory of a module's file, and, if that's a link, its target's."""
    for path in {loaded.path, os.path.realpath(loaded.path)}:
        _watch.add(os.path.dirname(path))
        _by_path.setdefault(path, set()).add(loaded.name)


def is_current(loaded: Loaded, source: bytes | None, tree: ast.Module) -> None:
    """Record that a module runs `source` now."""
    _count()
    loaded.source, loaded.imported, loaded.tree = source, None, tree
    _look_after(loaded)
    loaded.status, loaded.read_ns = None, 0  # to be checked once more: the file may have changed meanwhile
    _unsure.add(loaded.name)


def _look_at(loaded: Loaded, thoroughly: bool) -> Changed | None:
    """Return how a module's file differs from the executed source; None if it doesn't."""
    module = sys.modules.get(loaded.name)
    if module is None:  # removed from sys.modules by the user
        _modules.pop(loaded.name, None)
        _unsure.discard(loaded.name)
        return None
    now, status = time.time_ns(), file_status(loaded.path)
    if status is not None and status == loaded.status and loaded.is_certain and not thoroughly:
        return None
    if loaded.source is None:
        return None if status == loaded.status else Changed(loaded, None)
    try:
        with open(loaded.path, "rb") as file:
            source = file.read()
    except OSError:
        return Changed(loaded, None)
    if source != loaded.source:
        return Changed(loaded, source)
    loaded.status, loaded.read_ns = status, now
    return None


def _is_among(path: str, chosen: Iterable[str]) -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in chosen)


# --- while modules are imported


def _noting_get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
    """Return a module's code as Python does, and record its source."""
    path = self.get_filename(fullname)
    if is_library(path):
        return _get_code(self, fullname)
    path = os.path.abspath(path)
    loaded = Loaded(fullname, path, None, None, 0)
    _look_after(loaded)  # before the file is read: later changes are reported by events
    loaded.read_ns, loaded.status = time.time_ns(), file_status(path)
    loaded.source = source = self.get_data(path)
    code = _get_code(self, fullname) if _has_sure_byte_code(loaded) else self.source_to_code(source, path)
    _note(loaded)
    return None if code is None else with_notebook_path(code)


def _has_sure_byte_code(loaded: Loaded) -> bool:
    """Say whether the byte code beside a source surely belongs to it: Python compares only the seconds of
    mtime, and the size.
    """
    try:
        cached = os.stat(cache_from_source(loaded.path)).st_mtime_ns
    except (OSError, NotImplementedError):
        return False
    return loaded.status is not None and max(loaded.status[3:]) + GRAIN_NS < cached


def _noting_create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
    if spec.origin and not is_library(spec.origin):
        path = os.path.abspath(spec.origin)
        _note(Loaded(spec.name, path, None, file_status(path), time.time_ns()))
    return _create_module(self, spec)


def _note_loaded(name: str, module: Any) -> None:
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    path = getattr(spec, "origin", None)
    if (
        name == "__main__"
        or not isinstance(path, str)
        or not isinstance(loader, SourceFileLoader)
        or is_library(path)
    ):
        return
    path = os.path.abspath(path)
    now, status = time.time_ns(), file_status(path)
    try:
        with open(path, "rb") as file:
            _note(Loaded(name, path, file.read(), status, now))
    except OSError:
        return


def is_library(path: str) -> bool:
    """Say whether a file is of a library, not of the user's."""
    return path.startswith("<") or _is_library_folder(os.path.dirname(path))


@cache
def _is_library_folder(folder: str) -> bool:
    folder = os.path.abspath(folder)
    if not _LIBRARY_FOLDERS.isdisjoint(folder.split(os.sep)):
        return True
    return any(folder == root or folder.startswith(root + os.sep) for root in _library_roots())


@cache
def _library_roots() -> tuple[str, ...]:
    roots = {_PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
    roots.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        roots.add(site.getusersitepackages())
    return tuple({os.path.abspath(root) for root in roots} | {os.path.realpath(root) for root in roots})
