"""Detects that a package was installed into this process' environment, or edited in it, without reading its
files.

inotify looks after its directories: what is read from it right before a cell misses no change. Byte code
counts as nothing: importing a module writes it. Directories of code, such as sources of editable installs,
are looked after by workspaces.
"""

from __future__ import annotations

from monarch_nb._reload.watch import Watch
from monarch_nb._sync.env.layers import CODE, USER, Layers
from monarch_nb._sync.env.tree import folders_of

_BYTE_CODE = (".pyc", "__pycache__")


class EnvironmentWatch:
    """The watch on the layers of an environment. Used by one thread at a time.

    Attributes:
        num_folders: that are looked after.
        unseen: folders that can't be: on a network's file system, or beyond the limit of watches.

    Raises:
        OSError: if a layer can't be read.
    """

    def __init__(self, found: Layers) -> None:
        self.num_folders = 0
        self.unseen: list[str] = []
        self._watch = Watch()
        self._touched: set[str] | None = set()
        self.follow(found)

    def follow(self, found: Layers) -> None:
        """Watch these layers from now on, and new ones among them.

        Raises:
            OSError: if a layer can't be read.
        """
        self._layers = [layer for layer in found.layers if layer.kind != CODE or layer.name == USER]
        folders: list[str] = []
        for layer in self._layers:
            for folder in folders_of(layer):
                self._watch.add(folder, is_below=folder != layer.root)
                folders.append(folder)
        self.num_folders = len(folders)
        self.unseen = [folder for folder in folders if self._watch.is_blind(folder)]

    def has_changed(self) -> bool:
        """Say whether something has changed since `taken`. Costs some microseconds if nothing has."""
        touched = self._watch.touched()
        if touched is None or self._touched is None:
            self._touched = None
        else:
            self._touched.update(path for path in touched if not path.endswith(_BYTE_CODE))
        return self._touched is None or bool(self._touched)

    def taken(self) -> frozenset[str] | None:
        """Count what is there now as known: called before it's looked at, so that no change is lost.

        Returns:
            the paths that something has happened to since it was called last; None if there may be others.
        """
        self.has_changed()
        touched = None if self._touched is None else frozenset(self._touched)
        self._touched = set()
        return touched

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
