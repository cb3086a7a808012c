"""A shape is a view of a grid: an extent, and which rank of the grid stands at each place.

The ranks are listed, not computed from strides: after a few slices and flattenings no stride describes them
any more, and a list of a thousand small ints costs nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

from monarch_nb._shape.extent import Extent, Point
from monarch_nb._tracebacks import BadIndex, BadKey, BadType, BadValue

Selector = int | slice


class Shape:
    """A view of a base grid.

    Args:
        extent: the view's dimensions.
        ranks: the base rank at each place, row-major.
    """

    __slots__ = ("extent", "ranks")

    def __init__(self, extent: Extent, ranks: Sequence[int]) -> None:
        if len(ranks) != extent.nelements:
            raise ValueError(f"{len(ranks)} ranks for an extent of {extent.nelements}: {extent}")
        self.extent = extent
        self.ranks = tuple(ranks)

    @classmethod
    def full(cls, extent: Extent) -> Shape:
        """Return the view of a whole grid."""
        return cls(extent, range(extent.nelements))

    def slice(self, **selectors: Selector) -> Shape:
        """Return the part that `selectors` pick; an int drops its dimension.

        >>> Shape.full(Extent(["hosts", "gpus"], [2, 4])).slice(hosts=1, gpus=slice(0, 2)).ranks
        (4, 5)
        """
        for name in selectors:
            self._known(name)
        labels, sizes, picks = [], [], []
        for label, size in self.extent.items():
            selector = selectors.get(label, slice(None))
            indices = _pick(label, size, selector)
            picks.append(indices)
            if isinstance(selector, slice):
                labels.append(label)
                sizes.append(len(indices))
        return Shape(Extent(labels, sizes), self._at(picks))

    def _at(self, picks: list[list[int]]) -> list[int]:
        places = [0]
        for size, indices in zip(self.extent.sizes, picks, strict=True):
            places = [place * size + i for place in places for i in indices]
        return [self.ranks[place] for place in places]

    def _known(self, name: str) -> None:
        if name not in self.extent.labels:
            raise BadKey(f"there is no dimension {name!r}; this mesh has {self.extent}")

    def split(self, **splits: object) -> Shape:
        """Return the same places with a dimension split: `split(host=("dp", "pp"), pp=16)`.

        Sizes of all new dimensions but one must be given.
        """
        parts = {k: v for k, v in splits.items() if not isinstance(v, int)}
        given = {k: v for k, v in splits.items() if isinstance(v, int)}
        labels: list[str] = []
        sizes: list[int] = []
        new: set[str] = set()
        for name, names in parts.items():
            self._known(name)
            if isinstance(names, str):
                raise BadType(
                    f"{name} is split into a sequence of names, as in {name}=({names!r}, ...), not a str"
                )
        for label, size in self.extent.items():
            names = [str(n) for n in parts[label]] if label in parts else [label]  # type: ignore[attr-defined]
            labels += names
            new.update(names if label in parts else ())
            sizes += _split_sizes(label, size, names, given) if label in parts else [size]
        unused = set(given) - new
        if unused:
            raise BadKey(f"{sorted(unused)} is not among the new dimensions {sorted(new)}")
        return Shape(Extent(labels, sizes), self.ranks)

    def flatten(self, name: str) -> Shape:
        """Return the same places along a single dimension."""
        return Shape(Extent([name], [len(self.ranks)]), self.ranks)

    def rename(self, **names: str) -> Shape:
        """Return the same places with dimensions renamed: `rename(host="dp")`."""
        for name in names:
            self._known(name)
        return Shape(Extent([names.get(n, n) for n in self.extent.labels], self.extent.sizes), self.ranks)

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Return the size of a dimension, of several together, or of all."""
        names = self.extent.labels if dim is None else [dim] if isinstance(dim, str) else dim
        for name in names:
            self._known(name)
        return math.prod(self.extent[n] for n in names)

    def point(self, index: int) -> Point:
        """Return the place with this index in the view."""
        return Point(index, self.extent)

    def points(self) -> Iterator[Point]:
        """Yield all places in order."""
        return self.extent.points()

    def __len__(self) -> int:
        return len(self.ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and (self.extent, self.ranks) == (other.extent, other.ranks)

    def __hash__(self) -> int:
        return hash((self.extent, self.ranks))

    def __reduce__(self) -> tuple[object, ...]:
        return Shape, (self.extent, self.ranks)

    def __repr__(self) -> str:
        return f"Shape({dict(self.extent)}, {list(self.ranks)})"


def _pick(label: str, size: int, selector: Selector) -> list[int]:
    if isinstance(selector, slice):
        found = list(range(size)[selector])
        if not found:
            raise BadIndex(f"{label}={selector.start}:{selector.stop} picks nothing: {label} has size {size}")
        return found
    if isinstance(selector, bool) or not isinstance(selector, int):
        raise BadType(f"{label} takes an int or a slice, not {type(selector).__name__}: {selector!r}")
    if not -size <= selector < size:
        raise BadIndex(f"{label}={selector} is out of range: {label} has size {size} (0 to {size - 1})")
    return [selector % size]


def _split_sizes(label: str, size: int, names: list[str], given: dict[str, int]) -> list[int]:
    open_names = [n for n in names if n not in given]
    known = math.prod(given[n] for n in names if n in given)
    if len(open_names) > 1:
        raise BadValue(f"split of {label!r} needs a size for all but one of {names}; missing: {open_names}")
    if known < 1 or size % known or (not open_names and known != size):
        raise BadValue(f"{label!r} has size {size}, which can't be split into {names} with {given}")
    return [given.get(n, size // known) for n in names]


class MeshTrait(ABC):
    """The base class of every mesh, with slice, split, flatten and rename. Results are views; nothing is
    copied or started.
    """

    @property
    @abstractmethod
    def _shape(self) -> Shape:
        """The places of this mesh."""

    @abstractmethod
    def _with_shape(self, shape: Shape) -> Self:
        """Return this mesh restricted or re-arranged to `shape`."""

    def slice(self, **selectors: Selector) -> Self:
        """Return a part of this mesh. An int drops its dimension, a slice keeps it.

        Example:
            >>> mesh.slice(hosts=0, gpus=slice(0, 4))  # doctest: +SKIP
        """
        return self._with_shape(self._shape.slice(**selectors))

    def split(self, **splits: object) -> Self:
        """Return this mesh with a dimension split in several: `mesh.split(hosts=("dp", "pp"), pp=16)`."""
        return self._with_shape(self._shape.split(**splits))

    def flatten(self, name: str) -> Self:
        """Return this mesh with a single dimension."""
        return self._with_shape(self._shape.flatten(name))

    def rename(self, **names: str) -> Self:
        """Return this mesh with dimensions renamed: `mesh.rename(hosts="dp")`."""
        return self._with_shape(self._shape.rename(**names))

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Return the size of a dimension, or of the whole mesh."""
        return self._shape.size(dim)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return dict(self._shape.extent)

    @property
    def extent(self) -> Extent:
        """The dimensions of this mesh."""
        return self._shape.extent

    def __len__(self) -> int:
        return len(self._shape)
