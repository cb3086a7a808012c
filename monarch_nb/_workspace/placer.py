"""Makes a folder on a host equal to a manifest: file by file, each by a rename, and only what a sync has put
there is ever changed or deleted.

What a rank has changed there is kept beside it, as NAME.theirs. What else lies there, results of ranks, is
left alone.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from monarch_nb._workspace import entry as entries
from monarch_nb._workspace.answers import Edit, Lacking, Outcome
from monarch_nb._workspace.arrived import MODES, Arrived
from monarch_nb._workspace.below import FOLDER, Planted, folder_below, open_file, status
from monarch_nb._workspace.entry import BadEntry, Entry, Manifest
from monarch_nb._workspace.open_folders import OpenFolders
from monarch_nb._workspace.record import Placed, Record
from monarch_nb._workspace.staging import Staging, hash_file

STORE_VARIABLE = "MONARCH_NB_STORE"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}-[0-9a-f]{12}")
_ABANDONED_S = 24 * 3600.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def store_folder() -> str:
    """Return the folder in which this host stores synced files."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get(STORE_VARIABLE) or os.path.join(cache, "monarch_nb", "store")


class _Done(msgspec.Struct):
    """The changes that one placing has made so far."""

    placed: dict[str, Placed] = msgspec.field(default_factory=dict)
    gone: list[str] = msgspec.field(default_factory=list)
    theirs: list[tuple[str, str]] = msgspec.field(default_factory=list)
    refused: list[tuple[str, str]] = msgspec.field(default_factory=list)


class Placer:
    """One workspace's copy on this host. Used by one thread; other processes may have the same folder.

    Args:
        name: name of the workspace, and of its folder.
        host: identifies this host process among others that use the same store.
    """

    def __init__(self, store: str, name: str, host: str) -> None:
        if not _NAME.fullmatch(name):
            raise BadEntry(f"{name!r} is no name of a workspace")
        self._work = os.path.join(store, "work")
        self.folder = os.path.join(self._work, name)
        self.staging = Staging(f"{self.folder}.new-{re.sub(r'[^A-Za-z0-9.-]', '_', host)}")
        self._record = Record(f"{self.folder}.placed")

    def manifest(self) -> str:
        """Return the id of the manifest that the folder matches completely; "" if unknown."""
        self._record.refresh()
        return self._record.manifest if os.path.isdir(self.folder) else ""

    def free_bytes(self) -> int:
        """Return the number of free bytes of the file system."""
        at = self._work
        while not os.path.exists(at):
            at = os.path.dirname(at)
        found = os.statvfs(at)
        return found.f_bavail * found.f_frsize

    # --- comparison

    def look(self, manifest: Manifest, *, is_dry: bool = False) -> Lacking:
        """Compare the folder with a manifest, and return what is missing. The folder isn't changed, but
        contents that it has under another name are copied into the staging folder.

        Args:
            is_dry: if true, nothing is copied.
        """
        self._record.refresh()
        self.staging.refresh()
        root = self._open_root(make=False)
        if root is None:  # contents that have arrived are useful even before the folder exists
            others = self._other_stagings()
            files = [each for each in manifest.values() if not each.is_link]
            lacking = [each for each in files if not self._has_arrived(each, others, is_dry)]
            return Lacking(_contents(lacking), added=tuple(manifest))
        try:
            with OpenFolders(root) as folders:
                return self._look(folders, manifest, is_dry)
        finally:
            os.close(root)

    def _look(self, root: OpenFolders, manifest: Manifest, is_dry: bool) -> Lacking:
        missing = [each for each in manifest.values() if not self._has(root, each)]
        placed = self._record.placed
        elsewhere = {each.content: path for path, each in placed.items()}
        others = self._other_stagings()
        lacking = [
            each
            for each in missing
            if not each.is_link and not self._find(root, each, elsewhere, others, is_dry)
        ]
        theirs = [each.path for each in missing if self._is_theirs(root, each.path, each.content)]
        gone = [path for path in placed if path not in manifest]
        theirs += [path for path in gone if self._is_theirs(root, path, "")]
        return Lacking(
            _contents(lacking), tuple(m.path for m in missing if m.path not in placed),
            tuple(m.path for m in missing if m.path in placed), tuple(gone), tuple(theirs),
        )  # fmt: skip

    def _find(
        self,
        root: OpenFolders,
        entry: Entry,
        elsewhere: Mapping[str, str],
        others: Sequence[Staging],
        is_dry: bool,
    ) -> bool:
        """Return whether a content is on this host: in the staging folder, or in a file of the workspace,
        maybe under another name.
        """
        paths = (entry.path, elsewhere.get(entry.content, entry.path))
        return self._has_arrived(entry, others, is_dry) or any(
            self._reuse(root, path, entry, is_dry) for path in dict.fromkeys(paths)
        )

    def _has_arrived(self, entry: Entry, others: Sequence[Staging], is_dry: bool) -> bool:
        """Return whether a content has arrived in a staging folder; copy it from another one if need be."""
        if self.staging.has(entry.content):
            return True
        for other in others:
            if other.has(entry.content):
                return is_dry or self.staging.copy_from(other, entry.content)
        return False

    def _other_stagings(self) -> list[Staging]:
        """Return the staging folders of other host processes that share this store, including killed ones."""
        found = glob.glob(f"{glob.escape(self.folder)}.new-*")
        return [Staging(path) for path in found if path != self.staging.path]

    def _tidy(self) -> None:
        """Empty this staging folder, and remove those of processes that have been idle for a day."""
        self.staging.clear()
        for folder in glob.glob(f"{glob.escape(self.folder)}.new-*"):
            with suppress(OSError):
                if time.time() - os.stat(folder).st_mtime > _ABANDONED_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def _has(self, root: OpenFolders, entry: Entry) -> bool:
        """Return whether a file is in place, with the right content."""
        placed = self._record.placed.get(entry.path)
        if placed is None or placed.content != entry.content:
            return False
        found = self._status(root, entry.path)
        if found is None or not placed.is_as_placed(found):
            return False
        if entry.is_link:
            return stat.S_ISLNK(found.st_mode)
        return found.st_mtime_ns == entry.mtime_ns and stat.S_IMODE(found.st_mode) == MODES[entry.kind]

    def _reuse(self, root: OpenFolders, path: str, entry: Entry, is_dry: bool) -> bool:
        """Copy a content from a file of the workspace, because that file may change."""
        found = self._status(root, path)
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return False
        at, name = root.parent(path)
        with _reading(at, name) as fd:
            return hash_file(fd) == entry.content if is_dry else self.staging.copy_in(fd, entry.content)

    def _is_theirs(self, root: OpenFolders, path: str, content: str) -> bool:
        """Return whether a path holds a file that differs from the placed content and from the one to
        place.
        """
        with suppress(FileNotFoundError, Planted):
            return self._is_changed(*root.parent(path), path, content)
        return False

    def _is_changed(self, at: int, name: str, path: str, content: str) -> bool:
        found = status(at, name)
        placed = self._record.placed.get(path)
        if found is None or (placed is not None and placed.is_as_placed(found)):
            return False
        holds = _content_of(at, name, found)
        return holds != content and not self._record.is_ours(path, holds)

    def _status(self, root: OpenFolders, path: str) -> os.stat_result | None:
        try:
            return status(*root.parent(path))
        except (FileNotFoundError, Planted):
            return None

    # --- placing

    def place(self, manifest: Manifest) -> Outcome:
        """Make the folder equal to a manifest, whose contents have all arrived.

        Raises:
            BadEntry: if the manifest is invalid.
            OSError: if the disk is full; files placed so far stay, and the next attempt continues from there.
        """
        entries.manifest_of(manifest.values())
        with self._locked() as root, OpenFolders(root) as folders:
            wanted = [each for each in manifest.values() if not self._has(folders, each)]
            gone = [path for path in self._record.placed if path not in manifest]
            return self._change(folders, wanted, gone, entries.manifest_id(manifest), {})

    def edit(self, edit: Edit) -> Outcome | None:
        """Make a few changes. Return None without changing anything if the folder isn't at the manifest that
        they are based on.

        Raises:
            BadEntry: if the changes are invalid.
        """
        entries.manifest_of(edit.wanted)
        for path in edit.gone:
            entries.check_path(path)
        with self._locked() as root, OpenFolders(root) as folders:
            if not edit.base or self._record.manifest != edit.base:
                return None
            _check_contents(edit.contents)
            return self._change(folders, edit.wanted, edit.gone, edit.becomes, edit.contents)

    def _change(
        self,
        root: OpenFolders,
        wanted: Sequence[Entry],
        gone: Sequence[str],
        becomes: str,
        contents: Mapping[str, bytes],
    ) -> Outcome:
        done = _Done()
        if not wanted and not gone and self._record.manifest == becomes:
            return Outcome()
        before = set(self._record.placed)
        self._record.will_place({each.path: each.content for each in wanted})
        complete = False
        try:
            with Arrived(self.staging, wanted, contents) as arrived:
                self._change_files(root, wanted, gone, arrived, done)
            complete = not done.refused
        except OSError as error:
            raise OSError(error.errno, f"{self.folder}: {error.strerror}") from error
        finally:
            self._record.has_placed(done.placed, done.gone, becomes if complete else "")
        self._tidy()
        added = tuple(path for path in done.placed if path not in before)
        changed = tuple(path for path in done.placed if path in before)
        return Outcome(added, changed, tuple(done.gone), tuple(done.theirs), tuple(done.refused))

    def _change_files(
        self, root: OpenFolders, wanted: Sequence[Entry], gone: Sequence[str], arrived: Arrived, done: _Done
    ) -> None:
        paths = {each.path for each in wanted}
        folders = {above for path in paths for above in _above(path)}
        first = [path for path in gone if path in folders or any(above in paths for above in _above(path))]
        for path in first:
            self._tried(done, path, partial(self._delete, root, path, done))
        for each in sorted(wanted, key=lambda one: (one.is_link, one.path in self._record.placed)):
            self._tried(done, each.path, partial(self._put, root, each, arrived, done))
        for path in set(gone).difference(first):
            self._tried(done, path, partial(self._delete, root, path, done))

    def _tried(self, done: _Done, path: str, do: Callable[[], None]) -> None:
        """Process one file. After an error continue with the others, unless the disk is full."""
        try:
            do()
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            done.refused.append((path, error.strerror or str(error)))

    def _put(self, root: OpenFolders, entry: Entry, arrived: Arrived, done: _Done) -> None:
        entries.check_entry(entry)
        at, name = root.parent(entry.path, make=True)
        self._keep_theirs(at, name, entry.path, entry.content, done)
        found = _make_link(at, name, entry.content) if entry.is_link else arrived.put(entry, at, name)
        done.placed[entry.path] = Placed(entry.content, found.st_size, found.st_mtime_ns, found.st_ino)
        root.forget_byte_code(name)

    def _delete(self, root: OpenFolders, path: str, done: _Done) -> None:
        with suppress(FileNotFoundError):
            at, name = root.parent(path)
            self._keep_theirs(at, name, path, "", done)
            if status(at, name) is not None:
                os.unlink(name, dir_fd=at)
            root.forget_byte_code(name)
            root.leave()
            self._remove_empty(root.root, path.split("/")[:-1])
        done.gone.append(path)

    def _remove_empty(self, root: int, folders: Sequence[str]) -> None:
        """Remove folders that have become empty."""
        for n in range(len(folders), 0, -1):
            with folder_below(root, folders[: n - 1]) as at:
                _remove_cache(at, folders[n - 1])
                try:
                    os.rmdir(folders[n - 1], dir_fd=at)
                except OSError:
                    return

    def _keep_theirs(self, at: int, name: str, path: str, content: str, done: _Done) -> None:
        """Rename a file that a rank has written at a path where a file is to be placed."""
        if not self._is_changed(at, name, path, content):
            return
        kept = next(n for n in _names_for_theirs(name) if status(at, n) is None)
        os.rename(name, kept, src_dir_fd=at, dst_dir_fd=at)
        done.theirs.append((path, path[: len(path) - len(name)] + kept))

    # --- the folder

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the folder, creating it if need be, with a lock that keeps other processes from placing files
        in it.
        """
        os.makedirs(self._work, 0o700, exist_ok=True)
        lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._record.refresh()
            root = self._open_root(make=True)
            assert root is not None
            try:
                yield root
            finally:
                os.close(root)
        finally:
            os.close(lock)

    def _open_root(self, *, make: bool) -> int | None:
        if make:
            with suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
        try:
            return os.open(self.folder, FOLDER)
        except FileNotFoundError:
            return None
        except OSError:
            raise Planted(
                errno.ENOTDIR, f"{self.folder} is no folder there: nothing is written through it"
            ) from None

    def link_to(self, path: str) -> str:
        """Create a link to the folder at the notebook's path, if that path is free; return why not, or an
        empty text.
        """
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(self.folder, path)
        except FileExistsError:
            is_there = os.path.islink(path) and os.path.realpath(path) == os.path.realpath(self.folder)
            return "" if is_there else f"{path} is there already, and isn't replaced"
        except OSError as error:
            return f"{path} can't be made: {error.strerror}"
        return ""


def _check_contents(contents: Mapping[str, bytes]) -> None:
    for content, data in contents.items():
        if entries.digest(data) != content:
            raise BadEntry(
                f"the content received as {content[:12]} has another checksum: {entries.digest(data)[:12]}"
            )


def _contents(wanted: Iterable[Entry]) -> tuple[str, ...]:
    """Return the distinct contents of files."""
    return tuple(dict.fromkeys(each.content for each in wanted if not each.is_link))


@contextmanager
def _reading(at: int, name: str) -> Iterator[int]:
    fd = open_file(at, name)
    try:
        yield fd
    finally:
        os.close(fd)


def _content_of(at: int, name: str, found: os.stat_result) -> str:
    """Return the content of a directory entry: of a file its sha256, of a link its target, otherwise a text
    that no manifest contains.
    """
    if stat.S_ISLNK(found.st_mode):
        return os.readlink(name, dir_fd=at)
    if not stat.S_ISREG(found.st_mode):
        return "no file"
    with _reading(at, name) as fd:
        return hash_file(fd)


def _make_link(at: int, name: str, target: str) -> os.stat_result:
    beside = f".{name[:200]}.new"
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=at)
    os.symlink(target, beside, dir_fd=at)
    os.rename(beside, name, src_dir_fd=at, dst_dir_fd=at)
    return os.stat(name, dir_fd=at, follow_symlinks=False)


def _remove_cache(at: int, name: str) -> None:
    """Remove the byte code of a folder that contains nothing else."""
    with suppress(OSError), folder_below(at, [name]) as folder:
        if os.listdir(folder) == ["__pycache__"]:
            with folder_below(folder, ["__pycache__"]) as cache:
                for each in os.listdir(cache):
                    os.unlink(each, dir_fd=cache)
            os.rmdir("__pycache__", dir_fd=folder)


def _above(path: str) -> list[str]:
    """Return the folders of the workspace that contain a path."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _names_for_theirs(name: str) -> Iterator[str]:
    short = name.encode("utf-8", "surrogateescape")[:230].decode("utf-8", "surrogateescape")
    yield f"{short}.theirs"
    for n in range(2, 1 << 30):
        yield f"{short}.theirs.{n}"
