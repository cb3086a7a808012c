"""Prefixes: made of a store's content at their final path, tested there, and complete when the manifest lies
beside them.

::

    envs/ID.manifest   the prefix is complete, on the disk
    envs/ID.placed     it's complete, perhaps not on the disk: counts until the machine is started anew
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from monarch_nb._sync.env import manifest as manifests
from monarch_nb._sync.env import templates
from monarch_nb._sync.env.bytecode import PINNED_S
from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.manifest import Entry, Manifest, Part
from monarch_nb._sync.env.mounts import boot_id
from monarch_nb._sync.env.store import ID_LENGTH, MODES, Store, WrongContent, full_or, locked, write_all
from monarch_nb._sync.env.system_python import SYSTEM, find_system_python

_PLACED = ".placed"
RUNNABLE = ("env/bin/python", "base/bin/python3", "base/bin/python")


@dataclass(frozen=True)
class Prefix:
    """An environment on this host.

    Attributes:
        id: of the environment.
        root: directory with its layers.
        python: the interpreter.
        path: what stands for the notebook's `sys.path`, without what the working directory gives.
    """

    id: str
    root: str
    python: str
    path: tuple[str, ...]


def prefix_root(store_root: str, environment: str) -> str:
    """Return where an environment's prefix is, or would be."""
    return f"{store_root}/envs/{environment[:ID_LENGTH]}"


def find_prefix(store_root: str, environment: str) -> Prefix | None:
    """Return the prefix of an environment, if it's there and complete."""
    root = prefix_root(store_root, environment)
    with suppress(OSError, manifests.ManifestError):
        found = manifests.read_manifest(_noted(root))
        if found.id == environment and os.path.isdir(root):
            return _prefix(root, found)
    return None


def placed_manifest(store_root: str, environment: str) -> Manifest | None:
    """Return the manifest of an environment whose prefix is there and complete."""
    with suppress(OSError, manifests.ManifestError):
        found = manifests.read_manifest(_noted(prefix_root(store_root, environment)))
        return found if found.id == environment else None
    return None


def hold(store_root: str, environment: str) -> int:
    """Return a descriptor that keeps a prefix from being removed while it, or a copy of it, is open.

    Raises:
        OSError: if there's no such prefix.
    """
    root = prefix_root(store_root, environment)
    fd = os.open(root + ".lock", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.utime(fd)  # last used now
        _noted(root)
    except OSError:
        os.close(fd)
        raise
    return fd


def place(store: Store, found: Manifest, test: Callable[[Prefix], str]) -> Prefix:
    """Make the prefix of an environment whose parts and content the store has, unless it's there.

    Args:
        test: says why a prefix can't be used; empty if it can.

    Raises:
        WrongContent: if content is missing or was changed.
        StoreFull: if there's no room.
        EnvironmentSyncError: if the prefix doesn't pass its test; it's removed then.
    """
    if (there := find_prefix(store.root, found.id)) is not None:  # processes that run in it hold its lock
        return there
    root = prefix_root(store.root, found.id)
    with making(root):
        if (there := find_prefix(store.root, found.id)) is not None:
            return there
        shutil.rmtree(root, ignore_errors=True)  # left by a process that has died
        parts = [store.part(part.id) for part in found.parts]
        manifests.check_tree(parts)
        with moved_to(store, store.new_folder(), root) as fresh:
            fill_folder(store, fresh, parts, found)
            write_templates(store, fresh, templates_of(parts), found)
            _write_to_disk(fresh)
        prefix = tried(root, found, test)
        _complete(store, root, found)
    return prefix


@contextmanager
def moved_to(store: Store, folder: str, path: str) -> Iterator[str]:
    """Give a folder of tmp/, and move it to `path` once the block is over; remove it if the block fails.

    Raises:
        StoreFull: if there's no room.
    """
    try:
        yield folder
        os.rename(folder, path)
    except OSError as error:
        raise full_or(error, store.root) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tried(root: str, found: Manifest, test: Callable[[Prefix], str]) -> Prefix:
    """Return a prefix that was made, if it can be used.

    Raises:
        EnvironmentSyncError: if it doesn't pass its test; it's removed then.
    """
    prefix = _prefix(root, found)
    if problem := test(prefix):
        shutil.rmtree(root, ignore_errors=True)
        raise EnvironmentSyncError(problem)
    return prefix


def note_placed(store: Store, found: Manifest) -> None:
    """Count a prefix as complete from now on, before it's known to be on the disk; `settle` makes it last."""
    path = store.new_file()
    with store.writing(path) as fd:
        write_all(fd, boot_id().encode() + b"\n" + found.text)
    os.rename(path, prefix_root(store.root, found.id) + _PLACED)


def settle(store: Store, environment: str) -> None:
    """Have a prefix on the disk, so that it counts when the machine has been started anew, too."""
    root = prefix_root(store.root, environment)
    found = placed_manifest(store.root, environment)
    if found is not None and not os.path.exists(root + ".manifest"):
        _write_to_disk(root)
        _complete(store, root, found)
        with suppress(FileNotFoundError):
            os.unlink(root + _PLACED)


def forget_prefix(root: str) -> None:
    """Have a prefix not be complete any more."""
    for name in (".manifest", _PLACED):
        with suppress(FileNotFoundError):
            os.unlink(root + name)


def _noted(root: str) -> bytes:
    """Return the text of the manifest of a prefix that is complete.

    Raises:
        OSError: if it isn't there, or may be lost since the machine was started anew.
    """
    with suppress(FileNotFoundError):
        with open(root + ".manifest", "rb") as file:
            return file.read()
    with open(root + _PLACED, "rb") as file:
        boot, _, text = file.read().partition(b"\n")
    if boot != boot_id().encode():
        raise FileNotFoundError(errno.ENOENT, "the machine was started anew since", root)
    return text


def missing_content(store: Store, parts: Sequence[Part]) -> dict[str, int]:
    """Return the content that a store lacks for parts: its size by its name."""
    missing: dict[str, int] = {}
    looked: set[tuple[str, bool]] = set()
    for part in parts:
        for entry in part.entries:
            key = (entry.content, entry.kind == manifests.EXECUTABLE)
            if entry.kind != manifests.LINK and key not in looked:
                looked.add(key)
                if not any(
                    store.has(entry.content, entry.size, is_executable=x) for x in (key[1], not key[1])
                ):
                    missing[entry.content] = entry.size
    return missing


def absent_content(store_root: str, parts: Sequence[Part]) -> dict[str, int]:
    """Return the content that the store at `store_root` has no file for: its size by its name. Nothing is
    written, and no file is read.
    """
    sizes = {e.content: e.size for p in parts for e in p.entries if e.kind != manifests.LINK}
    return {content: size for content, size in sizes.items() if not _has_file(store_root, content)}


def _has_file(store_root: str, content: str) -> bool:
    path = f"{store_root}/objects/{content[:2]}/{content[2:]}"
    return os.path.exists(path) or os.path.exists(path + "x")


def fill_folder(store: Store, folder: str, parts: Sequence[Part], found: Manifest) -> None:
    """Link all files of an environment into a folder, but those that are written for each prefix.

    Raises:
        WrongContent: if content is missing or was changed.
    """
    made = {""}
    links: list[Entry] = []
    for part in parts:
        for entry in part.entries:
            _make_folders(folder, entry.path.rpartition("/")[0], made)
            if entry.kind == manifests.LINK:
                links.append(entry)
            elif entry.kind not in manifests.MADE_THERE:
                link_entry(store, f"{folder}/{entry.path}", entry)
    for entry in links:  # last: nothing is made through a link
        os.symlink(entry.content, f"{folder}/{entry.path}")
    if found.facts.get("system_python"):
        _link_system_python(folder, found)


def templates_of(parts: Iterable[Part]) -> list[Entry]:
    """Return the entries that are written anew for each prefix."""
    return [entry for part in parts for entry in part.entries if entry.kind in manifests.MADE_THERE]


def write_templates(store: Store, folder: str, entries: Iterable[Entry], found: Manifest) -> None:
    """Write into a folder what an environment's prefix has for itself.

    Raises:
        WrongContent: if content is missing or was changed.
        StoreFull: if there's no room.
    """
    roots = _roots(prefix_root(store.root, found.id), found)
    for entry in entries:
        _write_template(store, f"{folder}/{entry.path}", entry, roots)


def _link_system_python(folder: str, found: Manifest) -> None:
    """Give an environment that was made from the distribution's Python this machine's. `python3.11 -m venv`
    makes `python` a link to `python3.11`, and that one the link to the distribution's, which isn't sent.
    """
    there = find_system_python(found.facts["soabi"], found.facts["system_python"])
    target = "/usr/bin/python3" if there is None else there.executable
    os.makedirs(f"{folder}/env/bin", exist_ok=True)
    for name in ("python", "python3", f"python{'.'.join(found.facts['python'].split('.')[:2])}"):
        if not os.path.lexists(f"{folder}/env/bin/{name}"):
            os.symlink(target, f"{folder}/env/bin/{name}")


def _make_folders(folder: str, path: str, made: set[str]) -> None:
    if path not in made:
        _make_folders(folder, path.rpartition("/")[0], made)
        os.mkdir(f"{folder}/{path}", 0o755)
        made.add(path)


def link_entry(store: Store, path: str, entry: Entry) -> None:
    """Link a file of the store to a path.

    Raises:
        WrongContent: if its content is missing or was changed.
    """
    is_executable = entry.kind == manifests.EXECUTABLE
    there = store.object_path(entry.content, is_executable=is_executable)
    while True:
        if not store.has(entry.content, entry.size, is_executable=is_executable):
            if not store.has(entry.content, entry.size, is_executable=not is_executable):
                raise WrongContent(f"{entry.path}: its content isn't in the store")
            store.copy_mode(entry.content, is_executable=is_executable)
        try:
            os.link(there, path, follow_symlinks=False)
        except FileNotFoundError:
            # Another process may have put the same content in its place between the look at the name and the
            # link: the file that was there can't be linked any more. Its folder is there, or this never ends.
            if not os.path.isdir(os.path.dirname(path)):
                raise
        else:
            return


def _write_template(store: Store, path: str, entry: Entry, roots: Mapping[str, str]) -> None:
    if not store.has(entry.content, entry.size):
        raise WrongContent(f"{entry.path}: its content isn't in the store")
    content = templates.fill(store.read(entry.content), roots)
    with store.writing(path) as fd:
        write_all(fd, content)
        os.fchmod(fd, MODES[entry.kind == manifests.SCRIPT])
        os.utime(fd, (PINNED_S, PINNED_S))


def _roots(root: str, found: Manifest) -> dict[str, str]:
    names = [each.partition(":")[0] for each in found.facts.get("layers", "").split()]
    return {name: f"{root}/{name}" for name in names}


def _prefix(root: str, found: Manifest) -> Prefix:
    python = next((f"{root}/{path}" for path in RUNNABLE if os.path.lexists(f"{root}/{path}")), "")
    return Prefix(found.id, root, python, tuple(_path(root, found)))


def _path(root: str, found: Manifest) -> Iterator[str]:
    """Yield the entries of an environment's path on this host; the distribution's standard library is where
    this host's distribution has it.
    """
    for each in filter(None, found.facts.get("path", "").split("\n")):
        if each != SYSTEM:
            yield f"{root}/{each}"
        elif there := find_system_python(found.facts["soabi"], found.facts["system_python"]):
            yield from there.library


@contextmanager
def making(root: str) -> Iterator[None]:
    """Keep others from making the same prefix, or removing it, meanwhile."""
    fd = locked(root + ".lock", fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def _write_to_disk(folder: str) -> None:
    """Have the kernel write what was made, so that a crash leaves no prefix with empty files."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)


def _complete(store: Store, root: str, found: Manifest) -> None:
    path = store.new_file()
    with store.writing(path) as fd:
        write_all(fd, found.text)
        os.fsync(fd)
    os.rename(path, root + ".manifest")
