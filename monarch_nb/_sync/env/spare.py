"""A spare of a prefix: its files, linked once more, so that the next version of the environment is a few
files and a rename. Made after a prefix is in use, when nobody waits for it.

::

    spare/ID/        all of the prefix but what is written for each one
    spare/ID.list    canonical text of a part: what is written for each one
    spare/lock       flock: exclusive while a spare is made or taken
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from monarch_nb._sync.env import manifest as manifests
from monarch_nb._sync.env.manifest import Change, Entry, Manifest, ManifestError, Part, PartName
from monarch_nb._sync.env.place import (
    Prefix,
    fill_folder,
    find_prefix,
    link_entry,
    making,
    moved_to,
    note_placed,
    placed_manifest,
    prefix_root,
    templates_of,
    tried,
    write_templates,
)
from monarch_nb._sync.env.store import ID_LENGTH, Store, locked, write_all

MAX_SPARES = 2
"""That a store keeps: each has as many directories as a prefix, on the disk."""


def make_spare(store: Store, environment: str) -> None:
    """Make the spare of a prefix that is there, unless it has one; every file that is linked is looked at.

    Raises:
        WrongContent: if content was changed in the store.
        StoreFull: if there's no room.
    """
    found = placed_manifest(store.root, environment)
    if found is None:
        return
    with _locked(store.root):
        path = _path(store.root, environment)
        if os.path.isdir(path):
            return
        parts = [store.part(part.id) for part in found.parts]
        with moved_to(store, store.new_folder(), path) as fresh:
            fill_folder(store, fresh, parts, found)
            _write_list(store, path + ".list", templates_of(parts))
        _remove_but(store.root, MAX_SPARES)


def place_changed(
    store: Store,
    found: Manifest,
    before: str,
    changes: Mapping[str, Sequence[Change]],
    test: Callable[[Prefix], str],
) -> Prefix | None:
    """Make the prefix of an environment of the spare of another one; None if that can't be, and it's to be
    made as any other.

    Args:
        before: id of the other one.
        changes: by part of the other one, files that are otherwise; the store has their content.
        test: says why a prefix can't be used; empty if it can.

    Raises:
        ManifestError: if the changes don't lead from one environment to the other.
        WrongContent: if content is missing or was changed.
        EnvironmentSyncError: if the prefix doesn't pass its test; it's removed then.
    """
    root = prefix_root(store.root, found.id)
    _learn_changed(store, found, before, changes)
    with making(root):
        if (there := find_prefix(store.root, found.id)) is not None:
            return there
        taken = _take_spare(store, before)
        if taken is None:
            return None
        folder, templates = taken
        shutil.rmtree(root, ignore_errors=True)  # what a process that has died had made
        with moved_to(store, folder, root):
            for change in (each for several in changes.values() for each in several):
                _change(store, folder, change, templates)
            write_templates(store, folder, templates.values(), found)
        prefix = tried(root, found, test)
        note_placed(store, found)
    return prefix


def remove_spares(root: str) -> None:
    """Remove all spares of a store: whoever needs one makes it anew."""
    if os.path.isdir(f"{root}/spare"):
        with _locked(root):
            _remove_but(root, 0)


def _learn_changed(
    store: Store, found: Manifest, before: str, changes: Mapping[str, Sequence[Change]]
) -> None:
    """Remember the parts that have changed, if these changes make the environment of the other one."""
    old = placed_manifest(store.root, before)
    if old is None:
        raise ManifestError(f"environment {before[:ID_LENGTH]} isn't here, so nothing can be made of it")
    names = {part.id: part for part in old.parts}
    for part, several in changes.items():
        text = manifests.changed_text(store.part_text(part), several)
        name = names.pop(part)
        new = store.learn_text(text)
        names[new] = PartName(new, name.name, name.version)
    if dict(old.facts) != dict(found.facts) or set(names.values()) != set(found.parts):
        raise ManifestError(f"these changes of {before[:ID_LENGTH]} don't make {found.id[:ID_LENGTH]}")


def _change(store: Store, folder: str, change: Change, templates: dict[str, Entry]) -> None:
    path, entry = change
    templates.pop(path, None)
    with suppress(FileNotFoundError):  # one that is written for each prefix
        os.unlink(f"{folder}/{path}")
    if entry is not None and entry.kind in manifests.MADE_THERE:
        templates[path] = entry
    elif entry is not None:
        link_entry(store, f"{folder}/{path}", entry)


def _take_spare(store: Store, environment: str) -> tuple[str, dict[str, Entry]] | None:
    """Take the spare of an environment away; return a folder in tmp/, and what is written for each prefix, by
    path.
    """
    path, folder = _path(store.root, environment), store.new_file()
    with _locked(store.root), suppress(OSError, ManifestError):
        with open(path + ".list", "rb") as file:
            listed = manifests.read_part(file.read())
        os.rename(path, folder)
        os.unlink(path + ".list")
        return folder, {entry.path: entry for entry in listed.entries}
    return None


def _write_list(store: Store, path: str, entries: Sequence[Entry]) -> None:
    made = store.new_file()
    with store.writing(made) as fd:
        write_all(fd, Part("", "", tuple(entries)).text)
    os.rename(made, path)


def _remove_but(root: str, num: int) -> None:
    """Remove spares but for the newest."""
    folder = f"{root}/spare"
    names = [name for name in os.listdir(folder) if "." not in name and name != "lock"]
    for name in sorted(names, key=lambda n: -os.stat(f"{folder}/{n}").st_ctime)[num:]:
        shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}.list")


def _path(root: str, environment: str) -> str:
    return f"{root}/spare/{environment[:ID_LENGTH]}"


@contextmanager
def _locked(root: str) -> Iterator[None]:
    os.makedirs(f"{root}/spare", 0o700, exist_ok=True)
    fd = locked(f"{root}/spare/lock", fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)
