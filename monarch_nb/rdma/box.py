"""Boxes, parts of an n-dimensional array: intersection and difference. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """The elements from `start` on, `shape` of them along each dimension.

    >>> Box((0, 0), (4, 4)).overlap(Box((2, 1), (4, 2)))
    Box(start=(2, 1), shape=(2, 2))
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the box has no elements."""
        return 0 in self.shape

    def overlap(self, other: Box) -> Box:
        """Return the intersection of this box and another."""
        start = tuple(map(max, self.start, other.start))
        ends = (
            min(a + n, b + m)
            for a, n, b, m in zip(self.start, self.shape, other.start, other.shape, strict=True)
        )
        return Box(start, tuple(max(0, end - begin) for begin, end in zip(start, ends, strict=True)))

    def without(self, part: Box) -> list[Box]:
        """Return boxes that together cover this box except `part`, which lies within it.

        >>> Box((0,), (10,)).without(Box((2,), (3,)))
        [Box(start=(0,), shape=(2,)), Box(start=(5,), shape=(5,))]
        """
        left = []
        start, shape = list(self.start), list(self.shape)
        for dim in range(len(shape)):
            before = part.start[dim] - start[dim]
            after = start[dim] + shape[dim] - part.start[dim] - part.shape[dim]
            if before:
                left.append(Box(tuple(start), (*shape[:dim], before, *shape[dim + 1 :])))
            if after:
                at = part.start[dim] + part.shape[dim]
                left.append(
                    Box((*start[:dim], at, *start[dim + 1 :]), (*shape[:dim], after, *shape[dim + 1 :]))
                )
            start[dim], shape[dim] = part.start[dim], part.shape[dim]
        return left

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the index that selects this box in an array that holds exactly `outer`."""
        return tuple(
            slice(a - b, a - b + n) for a, n, b in zip(self.start, self.shape, outer.start, strict=True)
        )
