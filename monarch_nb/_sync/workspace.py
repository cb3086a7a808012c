"""The notebook's workspace: a folder, the selection of its files, and their contents."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from monarch_nb._reload.loaded import GRAIN_NS, is_library
from monarch_nb._reload.watch import FileStatus, Watch
from monarch_nb._sync.ignore import (
    MESHIGNORE,
    Choice,
    LeftOut,
    Listing,
    find_repository,
    is_never,
    list_files,
)
from monarch_nb._units import size_text
from monarch_nb._workspace.entry import BadEntry, Entry, Kind, Manifest, check_entry, manifest_id
from monarch_nb._workspace.staging import hash_file
from monarch_nb.exceptions import MeshUsageError

ASKED_BYTES = 1 << 30
"""Larger workspaces are sent only on request."""


class Scan(msgspec.Struct, frozen=True):
    """The contents of a workspace at one moment.

    Attributes:
        manifest: its files.
        id: of the manifest.
        left_out: files that aren't sent, with reasons.
    """

    manifest: Manifest
    id: str
    left_out: tuple[LeftOut, ...]

    @property
    def num_bytes(self) -> int:
        """The size of the workspace's files."""
        return sum(entry.size for entry in self.manifest.values())


class Workspace:
    """A folder of this machine that is copied to hosts. Used by one thread at a time.

    Args:
        folder: its path.
        include, exclude: patterns, as in a .gitignore.
    """

    def __init__(self, folder: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self.folder = os.path.realpath(folder)
        self.include, self.exclude = tuple(include), tuple(exclude)
        self.name = _name_of(self.folder)
        self.last: Scan | None = None
        self._known: dict[str, tuple[FileStatus, str]] = {}
        """Status and content of each file in the last scan, by path."""
        self._watch: Watch | None = None
        self._folders: set[str] = set()
        """Watched folders below the workspace's."""
        self._touched: set[str] | None = set()
        """Paths with events since the last scan; None if there may be others."""

    def scan(self, *, force: bool = False) -> Scan:
        """Scan all files; unchanged ones aren't read again.

        Args:
            force: however large it is.

        Raises:
            MeshUsageError: if it isn't there, has too many files, or more bytes than anybody would expect.
        """
        if not os.path.isdir(self.folder):
            raise MeshUsageError(f"sync: the workspace {self.folder} is gone")
        listing = self._list()
        if self.last is None and not force:
            self._check_size(listing.paths)
        # files that came into new folders before those were watched are found now
        while self._watch_all(listing):
            listing = self._list()
        known, self._known = self._known, {}
        manifest, left_out = self._entries(listing.paths, known)
        self.last = Scan(manifest, manifest_id(manifest), (*listing.left_out, *left_out))
        return self.last

    def has(self, path: str) -> bool:
        """Say whether a path of this machine lies in the workspace."""
        return path == self.folder or path.startswith(f"{self.folder.rstrip('/')}/")

    def pairs(self, there: str) -> tuple[tuple[str, str], ...]:
        """Return all paths by which this program refers to folders of the workspace, with their locations in
        a copy of it.
        """
        found = {self.folder: there}
        for path in map(os.path.abspath, filter(None, [*sys.path, os.environ.get("PWD", "")])):
            real = os.path.realpath(path)
            if self.has(real) and not self.has(path):
                found[path] = there + real[len(self.folder) :]
        return tuple(found.items())

    def current(self) -> Scan:
        """Return a scan of the workspace's present state, reading only files with events. Costs some
        microseconds if there are none.

        Raises:
            MeshUsageError: as `scan` does.
        """
        touched = self._look_at_events()
        if self.last is None or touched is None:
            return self.scan(force=True)
        if touched:
            files = [path for path in touched if self._counts(path)]
            if not all(self._is_known_file(path) for path in files):
                return self.scan(force=True)
            self._update(files)
            self._touched = set()
        return self.last

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # --- details

    def _list(self) -> Listing:
        return list_files(self.folder, Choice.of(self.folder, self.include, self.exclude), self._imported())

    def _check_size(self, paths: Iterable[str]) -> None:
        sizes: dict[str, int] = {}
        for path in paths:
            with suppress(OSError):
                top = path.partition("/")[0]
                sizes[top] = sizes.get(top, 0) + os.lstat(os.path.join(self.folder, path)).st_size
        total = sum(sizes.values())
        if total > ASKED_BYTES:
            most = ", ".join(
                f"{top} {size_text(size)}"
                for top, size in sorted(sizes.items(), key=lambda item: -item[1])[:3]
            )
            raise MeshUsageError(
                f"sync: {self.folder} has {size_text(total)} to send ({most}). Leave some out: "
                f"--exclude GLOB, or a line in {MESHIGNORE}; say which folder is your workspace: "
                "%mesh sync PATH; or send all of it: --force"
            )

    def _look_at_events(self) -> set[str] | None:
        """Return the paths below the workspace's folder with events; None if all files must be checked."""
        found = None if self._watch is None else self._watch.touched()
        if found is None or self._touched is None:
            self._touched = None
        else:
            self._touched |= {path[len(self.folder) :].lstrip("/") for path in found}
        return self._touched

    def _counts(self, path: str) -> bool:
        """Say whether an event matters: not that of a file that was created and removed, nor of byte code."""
        if path.rstrip("/") in self._folders or is_never(path):
            return False
        assert self.last is not None
        return path in self.last.manifest or os.path.lexists(os.path.join(self.folder, path))

    def _is_known_file(self, path: str) -> bool:
        assert self.last is not None
        known = None if os.path.basename(path) in (".gitignore", MESHIGNORE) else self.last.manifest.get(path)
        return known is not None and not known.is_link and os.path.isfile(os.path.join(self.folder, path))

    def _update(self, paths: Iterable[str]) -> None:
        """Update the scan for some known files."""
        assert self.last is not None
        entries, _ = self._entries(paths, self._known)
        manifest = {**self.last.manifest, **entries}
        if manifest != self.last.manifest:
            self.last = Scan(manifest, manifest_id(manifest), self.last.left_out)

    def _watch_all(self, listing: Listing) -> bool:
        """Have the kernel report events from now on, before files are read; say whether folders were
        added.
        """
        watch = self._watch = self._watch or Watch()
        watch.touched()
        before, self._folders = self._folders, self._folders_of(listing)
        folders = [os.path.join(self.folder, folder).rstrip("/") for folder in self._folders]
        for folder in folders:
            watch.add(folder)
        self._touched = None if any(map(watch.is_blind, folders)) else set()
        return not self._folders <= before

    def _folders_of(self, listing: Listing) -> set[str]:
        """Return the folders in which files of the workspace lie, or may come to lie."""
        found = {""}
        for path in listing.paths:
            above = os.path.dirname(path)
            while above not in found:
                found.add(above)
                above = os.path.dirname(above)
        out = {each.path.rstrip("/") for each in listing.left_out}
        left = list(found)
        while left:
            folder = left.pop()
            for path in _folders_in(self.folder, folder):
                if path not in found and path not in out and not is_never(path):
                    found.add(path)
                    left.append(path)
        return found

    def _entries(
        self, paths: Iterable[str], known: dict[str, tuple[FileStatus, str]]
    ) -> tuple[dict[str, Entry], list[LeftOut]]:
        found: dict[str, Entry] = {}
        left_out: list[LeftOut] = []
        for path in paths:
            try:
                entry = self._entry(path, known)
                if entry is not None:
                    check_entry(entry)
                    found[path] = entry
            except BadEntry as error:
                left_out.append(LeftOut(path, str(error).partition(" is ")[2] or str(error)))
            except OSError as error:
                if os.path.lexists(os.path.join(self.folder, path)):
                    left_out.append(LeftOut(path, f"can't be read: {error.strerror}"))
        return found, left_out

    def _entry(self, path: str, known: dict[str, tuple[FileStatus, str]]) -> Entry | None:
        """Return the entry of a file; None if it's no file."""
        whole = os.path.join(self.folder, path)
        found = os.lstat(whole)
        if stat.S_ISLNK(found.st_mode):
            return Entry(path, Kind.LINK, os.readlink(whole))
        if not stat.S_ISREG(found.st_mode):
            return None
        status = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        before = known.get(path)
        now = time.time_ns()
        content = before[1] if before is not None and before[0] == status else _hash(whole)
        if (
            max(found.st_mtime_ns, found.st_ctime_ns) + GRAIN_NS < now
        ):  # otherwise the file may change again with equal times
            self._known[path] = status, content
        kind = Kind.EXECUTABLE if found.st_mode & stat.S_IXUSR else Kind.FILE
        return Entry(path, kind, content, found.st_size, found.st_mtime_ns)

    def _imported(self) -> set[str]:
        """Return the files of the workspace that this program has loaded modules from."""
        files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        folders: dict[str, str] = {}
        real = (_real_path(file, folders) for file in files if isinstance(file, str))
        return {
            file[len(self.folder) :].lstrip("/")
            for file in real
            if self.has(file) and "/site-packages/" not in file
        }


def _folders_in(root: str, folder: str) -> list[str]:
    """Return the folders in a folder, as paths below the workspace's."""
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            return [
                os.path.join(folder, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def _real_path(file: str, folders: dict[str, str]) -> str:
    """Return the real path of a file; `folders`: known real paths of folders."""
    if os.path.islink(file):
        return os.path.realpath(file)
    folder, name = os.path.split(file)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)


def _hash(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return hash_file(fd)
    finally:
        os.close(fd)


def root_of(path: str) -> str:
    """Return the workspace's folder for a working directory: its repository, otherwise the directory
    itself.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    return find_repository(folder) or os.path.realpath(folder)


def _name_of(folder: str) -> str:
    """Return a readable name for copies of a folder, unique among all folders and machines."""
    machine = ""
    with suppress(OSError), open("/etc/machine-id", encoding="ascii") as file:
        machine = file.read().strip()
    known = "\0".join([machine, socket.gethostname(), str(os.getuid()), folder])
    short = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(folder) or "root")[:60]
    return f"{short}-{hashlib.sha256(os.fsencode(known)).hexdigest()[:12]}"


def not_covered(workspaces: Sequence[Workspace]) -> tuple[str, ...]:
    """Return folders on this program's module path that are in no workspace: ranks on other hosts don't find
    their modules.
    """
    folders = dict.fromkeys(os.path.realpath(path) for path in sys.path if path and os.path.isdir(path))
    own = {
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        os.path.dirname(sys.executable),
    }
    return tuple(
        folder
        for folder in folders
        if folder not in own
        and not is_library(os.path.join(folder, "x.py"))
        and not any(each.has(folder) for each in workspaces)
    )
