"""The memory layout of arrays: shape, strides, and their contiguous runs of memory. Pure.

A transfer between two layouts is a list of pieces, each contiguous on both sides; nothing else in this room
knows about strides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from monarch_nb.exceptions import MeshUsageError


class Runs(NamedTuple):
    """Contiguous stretches of equal length, in the order of the elements: where each begins (bytes), and
    how long each is.
    """

    starts: Sequence[int]
    nbytes: int


class Piece(NamedTuple):
    """Bytes that are contiguous on both sides: offset there, offset here, how many."""

    there: int
    here: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of elements in a region of memory.

    Attributes:
        shape: number of elements along each dimension.
        strides: bytes from one element to the next along each dimension.
        itemsize: bytes of an element.
        offset: bytes from the region's beginning to the first element.

    Example:
        >>> Layout.contiguous((2, 3), 4)[:, 1:].runs()
        Runs(starts=[4, 16], nbytes=8)
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    offset: int = 0

    @classmethod
    def contiguous(cls, shape: Sequence[int], itemsize: int, offset: int = 0) -> Layout:
        """Return the layout of an array in C order."""
        strides, step = [], itemsize
        for n in reversed(shape):
            strides.append(step)
            step *= n
        return cls(tuple(shape), tuple(reversed(strides)), itemsize, offset)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements, without gaps between them."""
        return math.prod(self.shape) * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie without gaps, in order."""
        return self.nbytes == 0 or self._folded()[1] == self.nbytes

    @property
    def span(self) -> tuple[int, int]:
        """The start and end offset in bytes of the range that holds all elements."""
        if not self.nbytes:
            return self.offset, self.offset
        ends = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low = sum(e for e in ends if e < 0)
        return self.offset + low, self.offset + sum(e for e in ends if e > 0) + self.itemsize

    def moved(self, by: int) -> Layout:
        """Return the same layout, shifted by `by` bytes."""
        return Layout(self.shape, self.strides, self.itemsize, self.offset + by)

    def __getitem__(self, index: Any) -> Layout:
        """Return the layout of a part, selected by integers and slices like a part of an array.

        Raises:
            MeshUsageError: if it's none of these, or out of range.
        """
        wanted = _expanded(index if isinstance(index, tuple) else (index,), len(self.shape))
        offset, shape, strides = self.offset, [], []
        for one, n, stride in zip(wanted, self.shape, self.strides, strict=True):
            if isinstance(one, slice):
                start, stop, step = _bounds(one, n)
                offset += start * stride
                shape.append(len(range(start, stop, step)))
                strides.append(stride * step)
            else:
                offset += _position(one, n) * stride
        return Layout(tuple(shape), tuple(strides), self.itemsize, offset)

    def _folded(self) -> tuple[list[tuple[int, int]], int]:
        """Merge contiguous inner dimensions. Return the remaining outer dimensions (size, stride), and the
        length of a contiguous run in bytes.
        """
        run = self.itemsize
        outer = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        while outer and outer[-1][1] == run:
            run *= outer.pop()[0]
        return outer, run

    def runs(self) -> Runs:
        """Return the contiguous runs, in the order of the elements."""
        if not self.nbytes:
            return Runs([], 0)
        outer, run = self._folded()
        if not outer:
            return Runs([self.offset], run)
        import numpy

        starts: Any = numpy.full((), self.offset, dtype=numpy.int64)
        for n, stride in outer:
            starts = starts[..., None] + numpy.arange(n, dtype=numpy.int64) * stride
        return Runs(starts.ravel().tolist(), run)


def _expanded(index: tuple[Any, ...], num_dims: int) -> tuple[Any, ...]:
    """Replace `...` and omitted dimensions by full slices."""
    if index.count(...) > 1:
        raise MeshUsageError(f"[{_text(index)}]: `...` may be used once")
    given = len(index) - index.count(...)
    if given > num_dims:
        raise MeshUsageError(f"[{_text(index)}]: {given} indices for {num_dims} dimensions")
    rest = (slice(None),) * (num_dims - given)
    if ... in index:
        at = index.index(...)
        return (*index[:at], *rest, *index[at + 1 :])
    return (*index, *rest)


def _bounds(wanted: slice, n: int) -> tuple[int, int, int]:
    try:
        return wanted.indices(n)
    except (TypeError, ValueError) as error:
        raise MeshUsageError(f"[{_text((wanted,))}]: {error}") from None


def _position(wanted: Any, n: int) -> int:
    if not hasattr(wanted, "__index__"):
        raise MeshUsageError(
            f"[{wanted!r}]: a buffer is indexed by integers, slices and `...`, not by a "
            f"{type(wanted).__name__}"
        )
    at = wanted.__index__()
    if not -n <= at < n:
        raise MeshUsageError(f"[{at}]: out of range for a dimension of {n}")
    return int(at % n)


def _text(index: tuple[Any, ...]) -> str:
    parts = []
    for one in index:
        if isinstance(one, slice):
            bounds = [one.start, one.stop] if one.step is None else [one.start, one.stop, one.step]
            parts.append(":".join("" if b is None else str(b) for b in bounds))
        else:
            parts.append("..." if one is ... else repr(one))
    return ", ".join(parts)


def pieces(there: Layout, here: Layout) -> Iterator[Piece]:
    """Yield the pieces that are contiguous on both sides, in the order of the elements. Both layouts have the
    same number of bytes.

    >>> list(pieces(Layout.contiguous((4,), 2), Layout((2, 2), (8, 2), 2)))
    [Piece(there=0, here=0, nbytes=4), Piece(there=4, here=8, nbytes=4)]
    """
    theirs, ours = there.runs(), here.runs()
    i = j = a = b = 0
    left = there.nbytes
    while left:
        n = min(theirs.nbytes - a, ours.nbytes - b)
        yield Piece(theirs.starts[i] + a, ours.starts[j] + b, n)
        left -= n
        a, b = a + n, b + n
        if a == theirs.nbytes:
            i, a = i + 1, 0
        if b == ours.nbytes:
            j, b = j + 1, 0


def batches(parts: Iterable[Piece], max_bytes: int, max_pieces: int = 1 << 30) -> list[list[Piece]]:
    """Return pieces in lists of at most `max_bytes` and `max_pieces` each; longer pieces are split.

    >>> batches([Piece(0, 0, 5), Piece(8, 5, 2)], 4)
    [[Piece(there=0, here=0, nbytes=4)], [Piece(there=4, here=4, nbytes=1), Piece(there=8, here=5, nbytes=2)]]
    """
    found: list[list[Piece]] = []
    room = 0
    for there, here, left in parts:
        while left:
            if not room or len(found[-1]) == max_pieces:
                found.append([])
                room = max_bytes
            n = min(left, room)
            found[-1].append(Piece(there, here, n))
            there, here, left, room = there + n, here + n, left - n, room - n
    return found
