"""Puts an environment of this machine into a store on this machine, to carry it to a host that can't be
reached.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb._sync.env.errors import EnvironmentSyncError
from monarch_nb._sync.env.fits import try_prefix
from monarch_nb._sync.env.place import Prefix, missing_content, place
from monarch_nb._sync.env.scan import Scanned
from monarch_nb._sync.env.store import Store, WrongContent
from monarch_nb._sync.env.treatment import Treater


def fill_store(store: Store, scanned: Scanned) -> int:
    """Put an environment's content into a store; return how many bytes weren't there.

    Raises:
        EnvironmentSyncError: if a file isn't what was believed, or has changed meanwhile.
    """
    treater = Treater(scanned.roots)
    for part in scanned.parts.values():
        if not store.has_part(part.id):
            store.learn(part.text)
    missing = missing_content(store, list(scanned.parts.values()))
    for sha256 in missing:
        source = scanned.sources[sha256]
        try:
            store.add(sha256, [treater.read(source).content])
        except WrongContent:
            raise changed(source.file) from None
    return sum(missing.values())


def export(root: str, scanned: Scanned, modules: Sequence[str] = (), advice: str = "") -> Prefix:
    """Make a prefix of an environment in the store `root`; it runs at that path, on any host that it fits.

    Args:
        root: absolute path of a directory.
        scanned: the environment.
        modules: that can be imported there.
        advice: how the user names another directory, for errors.

    Raises:
        EnvironmentSyncError: if it can't be made, or doesn't pass its test.
    """
    store = Store(root, advice)
    try:
        fill_store(store, scanned)
        return place(store, scanned.manifest, lambda prefix: try_prefix(prefix, modules))
    finally:
        store.close()


class FileChanged(EnvironmentSyncError):
    """The error of a file that has changed since the environment was scanned."""


def changed(file: str) -> FileChanged:
    """Return the error for a file that differs from its record or from the cache."""
    return FileChanged(
        f"{file} has changed meanwhile, or isn't what its package's record says: "
        "once more, or with --verify, which reads every file"
    )
