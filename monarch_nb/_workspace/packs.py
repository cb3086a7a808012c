"""Packs of small contents: one file each, whose first line lists the place of each content.

So many small files cost as many system calls as packs, not as files, until they are put in place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from monarch_nb._workspace.below import new_file, open_file
from monarch_nb._workspace.entry import digest

SUFFIX = ".pack"


@dataclass(frozen=True, slots=True)
class Slice:
    """The place of a content in a pack.

    Attributes:
        pack: the file's name.
        offset, size: of the content in it, in bytes.
    """

    pack: str
    offset: int
    size: int


@dataclass
class Packs:
    """The packs of one folder. Used by one thread.

    Attributes:
        slices: places of contents, by their sha256; None until the folder was read.
    """

    path: str
    slices: dict[str, Slice] | None = None
    _last: tuple[str, bytes] = field(default=("", b""))

    def add(self, at: int, contents: Mapping[str, bytes], part: str) -> None:
        """Write contents as a pack into the folder that is open at `at`; each content matches its name.

        Args:
            part: the name of the file until it's complete.
        """
        sizes = {content: len(data) for content, data in contents.items()}
        head = json.dumps(sizes).encode() + b"\n"
        name = digest(head) + SUFFIX
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=at)
        with open(new_file(at, part), "wb", buffering=0) as file:
            file.write(head + b"".join(contents.values()))
        os.rename(part, name, src_dir_fd=at, dst_dir_fd=at)
        self._known().update(_slices(name, len(head), sizes))

    def has(self, content: str) -> bool:
        """Return whether a content is in a pack."""
        return content in self._known()

    def read(self, at: int, content: str) -> bytes | None:
        """Return a content; None if no pack has it, or if its bytes don't match its name. `at`: the folder,
        open.
        """
        found = self._known().get(content)
        if found is None:
            return None
        data = self._pack(at, found.pack)[found.offset : found.offset + found.size]
        return data if digest(data) == content else None

    def clear(self) -> None:
        """Forget all packs, because the folder has been emptied."""
        self.slices, self._last = {}, ("", b"")

    def _pack(self, at: int, name: str) -> bytes:
        """Return a whole pack. The last one is cached, because contents are read in the order of their
        arrival.
        """
        if self._last[0] != name:
            with open(open_file(at, name), "rb") as file:
                self._last = name, file.read()
        return self._last[1]

    def refresh(self) -> None:
        """Update the list of the folder's packs: another process may have removed or added some."""
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = [name for name in os.listdir(self.path) if name.endswith(SUFFIX)]
        before = self.slices or {}
        self.slices = {content: each for content, each in before.items() if each.pack in names}
        known = {each.pack for each in self.slices.values()}
        for name in sorted(set(names) - known):
            self.slices.update(_read_head(os.path.join(self.path, name)))

    def _known(self) -> dict[str, Slice]:
        if self.slices is None:
            self.refresh()
        assert self.slices is not None
        return self.slices


def _read_head(path: str) -> dict[str, Slice]:
    """Return the list of contents at the start of a pack; empty if the file isn't a pack."""
    with suppress(OSError, ValueError, AttributeError, TypeError), open(path, "rb") as file:
        head = file.readline()
        return _slices(os.path.basename(path), len(head), json.loads(head))
    return {}


def _slices(pack: str, offset: int, sizes: Mapping[str, int]) -> dict[str, Slice]:
    """Return the places of contents that are stored one after the other."""
    found = {}
    for content, size in sizes.items():
        found[content] = Slice(pack, offset, size)
        offset += size
    return found
