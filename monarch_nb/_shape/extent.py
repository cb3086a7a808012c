"""An extent names the dimensions of a grid and their sizes; a point is one place in it. Both are mappings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from monarch_nb._tracebacks import BadType, BadValue


class Extent(Mapping[str, int]):
    """The named sizes of a grid, row-major: the last dimension varies fastest.

    Raises:
        TypeError: if a size isn't an int.
        ValueError: if a name is no identifier or doubled, or a size is below 1.

    Example:
        >>> Extent(["hosts", "gpus"], [2, 4]).nelements
        8
    """

    __slots__ = ("labels", "nelements", "sizes")

    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None:
        self.labels = tuple(labels)
        self.sizes = tuple(sizes)
        _check(self.labels, self.sizes)
        self.nelements = math.prod(self.sizes)

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Extent:
        """Return the extent with the dimensions of a mapping, in its order."""
        return cls(list(sizes), list(sizes.values()))

    def __getitem__(self, label: str) -> int:
        try:
            return self.sizes[self.labels.index(label)]
        except ValueError:
            raise KeyError(label) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extent) and (self.labels, self.sizes) == (other.labels, other.sizes)

    def __hash__(self) -> int:
        return hash((self.labels, self.sizes))

    def __reduce__(self) -> tuple[object, ...]:
        return Extent, (self.labels, self.sizes)

    def __repr__(self) -> str:
        return f"Extent({dict(self)})"

    def __str__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.items()) or "no dimensions"

    def point(self, rank: int) -> Point:
        """Return the place of `rank`."""
        return Point(rank, self)

    def points(self) -> Iterator[Point]:
        """Yield all places in rank order."""
        return (Point(rank, self) for rank in range(self.nelements))

    def rank_of(self, **coords: int) -> int:
        """Return the rank at `coords`, which name every dimension.

        >>> Extent(["hosts", "gpus"], [2, 4]).rank_of(hosts=1, gpus=0)
        4
        """
        if set(coords) != set(self.labels):
            raise KeyError(f"expected a coordinate for each of {list(self.labels)}, got {sorted(coords)}")
        rank = 0
        for label, size in self.items():
            at = coords[label]
            if not 0 <= at < size:
                raise IndexError(f"{label}={at} is out of range: {label} has size {size}")
            rank = rank * size + at
        return rank


def _check(labels: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    if len(labels) != len(sizes):
        raise ValueError(f"{len(labels)} dimensions {list(labels)} but {len(sizes)} sizes {list(sizes)}")
    if len(set(labels)) != len(labels):
        raise BadValue(f"dimensions must have different names: {list(labels)}")
    for label, size in zip(labels, sizes, strict=True):
        if not isinstance(label, str) or not label.isidentifier():
            raise BadValue(f"a dimension's name must be an identifier such as 'gpus': {label!r}")
        if isinstance(size, bool) or not isinstance(size, int):
            raise BadType(f"size of {label!r} must be an int, not {type(size).__name__}: {size!r}")
        if size < 1:
            raise BadValue(f"size of {label!r} must be at least 1, not {size}")


class Point(Mapping[str, int]):
    """A place in an extent: its rank, and its coordinate in each dimension.

    >>> Extent(["hosts", "gpus"], [2, 4]).point(6)["gpus"]
    2
    """

    __slots__ = ("extent", "rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        if not 0 <= rank < extent.nelements:
            raise IndexError(
                f"rank {rank} is out of range: the extent {extent} has ranks 0-{extent.nelements - 1}"
            )
        self.rank = rank
        self.extent = extent

    def __getitem__(self, label: str) -> int:
        rest = self.rank
        for name, size in zip(reversed(self.extent.labels), reversed(self.extent.sizes), strict=True):
            if name == label:
                return rest % size
            rest //= size
        raise KeyError(label)

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent.labels)

    def __len__(self) -> int:
        return len(self.extent.labels)

    def size(self, label: str) -> int:
        """Return the size of a dimension."""
        return self.extent[label]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.rank == other.rank and self.extent == other.extent

    def __hash__(self) -> int:
        return hash((self.rank, self.extent))

    def __reduce__(self) -> tuple[object, ...]:
        return Point, (self.rank, self.extent)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k!r}: {v}/{self.extent[k]}" for k, v in self.items()) + "}"


def encode_extent(extent: Extent) -> bytes:
    """Return an extent as messages carry it.

    >>> encode_extent(Extent(["hosts", "gpus"], [2, 4]))
    b'hosts=2,gpus=4'
    """
    return ",".join(f"{k}={v}" for k, v in extent.items()).encode()


@lru_cache(256)
def decode_extent(data: bytes) -> Extent:
    """Return the extent that a message carried."""
    pairs = [part.split("=") for part in data.decode().split(",") if part]
    return Extent([k for k, _ in pairs], [int(v) for _, v in pairs])
