"""Opens folders below a workspace's one after the other; the last one stays open, because files arrive folder
by folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType

from monarch_nb._workspace.below import folder_below
from monarch_nb._workspace.entry import check_path


class OpenFolders:
    """A cache of descriptors of folders below `root`; used in a `with` statement, by one thread."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._parts: tuple[str, ...] = ()
        self._at = root
        self._open = ExitStack()
        self._sources: list[str] = []
        """Python sources of the folder that were replaced or deleted."""

    def __enter__(self) -> OpenFolders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def parent(self, path: str, *, make: bool = False) -> tuple[int, str]:
        """Return the descriptor of the folder that contains a path, and the name in it. The folder stays open
        until the next call for another one.

        Args:
            make: whether missing folders are created.

        Raises:
            Planted, FileNotFoundError: as `folder_below` does.
            BadEntry: if the path is invalid.
        """
        *parts, name = check_path(path)
        return self._folder(tuple(parts), make), name

    def forget_byte_code(self, name: str) -> None:
        """Schedule the removal of the byte code of a source in the open folder that was just replaced or
        deleted. Python compares only size and seconds, so it could use the old byte code for the new source.
        """
        if name.endswith(".py"):
            self._sources.append(name)

    def leave(self) -> None:
        """Close the open folder."""
        if self._sources:
            _forget(self._at, self._sources)
            self._sources = []
        self._open.close()
        self._parts, self._at = (), self.root

    def _folder(self, parts: tuple[str, ...], make: bool) -> int:
        if parts != self._parts:
            self.leave()
            self._at = self._open.enter_context(folder_below(self.root, parts, make=make))
            self._parts = parts
        return self._at


def _forget(at: int, sources: Sequence[str]) -> None:
    starts = {name[:-3] for name in sources}
    with suppress(OSError), folder_below(at, ["__pycache__"]) as cache:
        for each in os.listdir(cache):
            if each.endswith(".pyc") and not starts.isdisjoint(_starts_of(each)):
                os.unlink(each, dir_fd=cache)


def _starts_of(name: str) -> Iterator[str]:
    """Yield the parts of a name up to each dot, because names of sources and tags of interpreters contain
    dots.

    >>> list(_starts_of("a.b.cpython-311.pyc"))
    ['a', 'a.b', 'a.b.cpython-311']
    """
    return (name[:n] for n, character in enumerate(name) if character == ".")
