"""Packs of content of at most 16 MiB: small contents are combined, large ones cut. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

PACK_BYTES = 16 << 20


class Slice(NamedTuple):
    """A stretch of some content.

    Attributes:
        sha256: names the content.
        size: bytes of all of it.
        offset, length: which of them are in the pack.
    """

    sha256: str
    size: int
    offset: int
    length: int

    @property
    def is_last(self) -> bool:
        """Whether the content ends here."""
        return self.offset + self.length == self.size


@dataclass(frozen=True)
class Pack:
    """A pack: slices of content that are sent at once, one behind the other."""

    slices: tuple[Slice, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all slices."""
        return sum(each.length for each in self.slices)


def packs_of(sizes: Mapping[str, int], limit: int = PACK_BYTES) -> Iterator[Pack]:
    """Yield packs that have all content, the largest first; slices of one content are in order.

    Only what is larger than a pack is cut: packs with cut content must be sent one after the other, all
    others can be under way at once.

    >>> [[(s.sha256, s.offset, s.length) for s in p.slices] for p in packs_of({"a": 5, "b": 3, "c": 0}, 4)]
    [[('a', 0, 4)], [('a', 4, 1), ('b', 0, 3), ('c', 0, 0)]]
    >>> [[s.sha256 for s in pack.slices] for pack in packs_of({"a": 3, "b": 3, "c": 1}, 4)]
    [['a'], ['b', 'c']]
    """
    slices: list[Slice] = []
    room = limit
    for sha256, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        if room < size <= limit and slices:
            yield Pack(tuple(slices))
            slices, room = [], limit
        offset = 0
        while True:
            length = min(size - offset, room)
            if length or not size:
                slices.append(Slice(sha256, size, offset, length))
            offset, room = offset + length, room - length
            if offset == size:
                break
            yield Pack(tuple(slices))
            slices, room = [], limit
    if slices:
        yield Pack(tuple(slices))
