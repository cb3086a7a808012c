"""Descriptions of tensors on the controller: shape, type, and layout on the ranks. Each exists once, so that
they are compared by `is`.
"""

from __future__ import annotations

import copy
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from monarch_nb._tensor.slots import LIGHTEST
from monarch_nb.exceptions import MeshUsageError

Placements = tuple[Any, ...]
_numbers = itertools.count()
MAIN_STREAM = "main"
FREE, READ_ONLY, LENT, TAKEN = "free", "read-only", "lent", "taken"
"""Permitted use of tensors: any; reading, for a borrow; reading, while another stream has borrowed it; none,
while another stream has borrowed it to change it.
"""


class Grid:
    """The axes over which tensors of one engine are laid out.

    Attributes:
        engine: engine whose ranks these are.
        shape, names: of the axes.
        ranks: rank of the engine at each point, the last axis fastest.
        number: number by which plans refer to it.
        device_mesh: torch's description of it; it has no process groups here.
        stream: name of the `Stream` that its tensors are on.
        access: permitted use of its tensors: `FREE`, `READ_ONLY`, `LENT` or `TAKEN`.
        base: the grid of the same axes for tensors of the main stream with free access.
    """

    def __init__(
        self, engine: Any, shape: Sequence[int], names: Sequence[str], ranks: Sequence[int], device: str
    ) -> None:
        self.engine = engine
        self.shape, self.names, self.ranks = tuple(shape), tuple(names), tuple(ranks)
        self.number = next(_numbers)
        self.stream, self.access, self.base = MAIN_STREAM, FREE, self
        self._variants: dict[tuple[str, str], Grid] = {(MAIN_STREAM, FREE): self}
        ids = torch.tensor(self.ranks, dtype=torch.int).view(self.shape)
        self.device_mesh = DeviceMesh(
            device, ids, mesh_dim_names=self.names, _init_backend=False, _rank=self.ranks[0]
        )

    def variant(self, stream: str, access: str) -> Grid:
        """Return the same grid for tensors of a stream and a kind of access. Each variant is unique, so that
        its tensors have metadata of their own, and operations plans of their own.
        """
        variants = self.base._variants
        found = variants.get((stream, access))
        if found is None:
            found = variants[stream, access] = copy.copy(self.base)
            found.stream, found.access = stream, access
        return found

    @property
    def free(self) -> Grid:
        """The variant of the grid for results of operations on its tensors."""
        return self if self.access == FREE else self.variant(self.stream, FREE)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes by name."""
        return dict(zip(self.names, self.shape, strict=True))

    @property
    def replicated(self) -> Placements:
        """The layout in which each rank has the whole tensor."""
        return (Replicate(),) * len(self.shape)

    def __repr__(self) -> str:
        return f"Grid({self.sizes})"


class Meta:
    """Shape, type and layout of a tensor.

    Attributes:
        size, stride, offset, dtype: as torch's.
        grid: grid that it is laid out over.
        placements: one for each axis of the grid; None: each rank has a value of its own.
        is_copy: whether a view is really a copy, because it had to be laid out anew: writes into it don't
            reach its base.
        num_bytes: of the whole tensor; `weight`: what it counts for when it's dropped, see `slots`.
        make: makes a tensor of this kind, without its place; None until the first one was made.
    """

    __slots__ = (
        "__weakref__", "dtype", "fake", "grid", "is_copy", "make", "num_bytes", "offset", "placements",
        "size", "stride", "weight",
    )  # fmt: skip

    def __init__(
        self, size: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, grid: Grid,
        placements: Placements | None, offset: int, is_copy: bool,
    ) -> None:  # fmt: skip
        self.size, self.stride, self.dtype, self.offset = size, stride, dtype, offset
        self.grid, self.placements, self.is_copy = grid, placements, is_copy
        self.fake: torch.Tensor | None = None
        self.num_bytes = int(math.prod(self.size) * self.dtype.itemsize)
        self.weight = max(self.num_bytes, LIGHTEST)
        self.make: Callable[[], Any] | None = None

    @property
    def spec(self) -> DTensorSpec:
        """The metadata as a DTensorSpec of torch.

        A dimension that is split in strides, as views of split dimensions are, says nothing here of the order
        of axes. On ranks, where views make such specs, it doesn't either, and other rules would be followed.
        """
        assert self.placements is not None
        return DTensorSpec(
            self.grid.device_mesh,
            self.placements,
            TensorMeta(self.size, self.stride, self.dtype),
            use_strided_shard_as_shard_order=False,
        )

    def on(self, grid: Grid) -> Meta:
        """Return the metadata of the same tensor on another variant of its grid."""
        if grid is self.grid:
            return self
        return intern(self.size, self.stride, self.dtype, grid, self.placements, self.offset, self.is_copy)

    def with_layout(self, placements: Placements | None) -> Meta:
        """Return the metadata of the same tensor in another layout."""
        return intern(self.size, contiguous(self.size), self.dtype, self.grid.free, placements)

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.size)} {self.layout}"

    @property
    def layout(self) -> str:
        """The layout on the ranks as text, such as `dim 0 over data_parallel`."""
        return layout_text(self.grid, self.placements)


_known: weakref.WeakValueDictionary[Any, Meta] = weakref.WeakValueDictionary()


def intern(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, grid: Grid, placements: Placements | None,
    offset: int = 0, is_copy: bool = False,
) -> Meta:  # fmt: skip
    """Return the unique metadata object with these values."""
    key = (tuple(size), tuple(stride), dtype, id(grid), placements, offset, is_copy)
    found = _known.get(key)
    if found is None:
        found = _known[key] = Meta(torch.Size(size), tuple(stride), dtype, grid, placements, offset, is_copy)
    return found


def forget(engine: Any) -> None:
    """Remove the metadata of an engine that has ended."""
    for key in [key for key, meta in list(_known.items()) if meta.grid.engine is engine]:
        _known.pop(key, None)


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for each in reversed(size):
        strides.append(step)
        step *= max(each, 1)
    return tuple(reversed(strides))


def placements_of(spec: Sequence[Any], size: Sequence[int], grid: Grid) -> Placements:
    """Return torch's placements of a sharding spec.

    Args:
        spec: for each dimension of the tensor the name of the axis over which it's sharded, several names, or
            None. It may be shorter than the tensor.
        size: the tensor's shape.

    Raises:
        MeshUsageError: for an axis that doesn't exist or is named twice, or a spec with more entries than the
            tensor has dimensions.
    """
    if isinstance(spec, str) or not isinstance(spec, Sequence):
        raise MeshUsageError(
            "sharding_spec is a list with an axis or None for each dimension, as in "
            f"{_example(grid, size)}; not {spec!r}"
        )
    if len(spec) > len(size):
        raise MeshUsageError(
            f"sharding_spec {list(spec)} has {len(spec)} entries for a tensor with {_dimensions(size)}; "
            f"give at most one for each, as in {_example(grid, size)}"
        )
    found: dict[str, int] = {}
    for dim, entry in enumerate(spec):
        for name in _axes(entry, grid, size):
            if name in found:
                raise MeshUsageError(
                    f"sharding_spec {list(spec)} names axis {name!r} twice; a tensor is sharded over "
                    "an axis once"
                )
            found[name] = dim
    return tuple(Shard(found[name]) if name in found else Replicate() for name in grid.names)


def _axes(entry: Any, grid: Grid, size: Sequence[int]) -> Sequence[str]:
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
        raise MeshUsageError(
            "an entry of sharding_spec is an axis, a tuple of axes, or None, as in "
            f"{_example(grid, size)}; not {entry!r}"
        )
    for name in names:
        if name not in grid.names:
            raise MeshUsageError(
                f"the mesh has no axis {name!r}: its axes are {_listed(grid.sizes)}; write "
                f"sharding_spec={_example(grid, size)}"
            )
    return names


def _example(grid: Grid, size: Sequence[int]) -> str:
    return str([grid.names[0], *[None] * (len(size) - 1)]) if size else "[]"


def _dimensions(size: Sequence[int]) -> str:
    return f"{len(size)} dimension{'s' * (len(size) != 1)}" if size else "no dimensions (a single number)"


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} ({size})" for name, size in sizes.items())


def layout_text(grid: Grid, placements: Placements | None) -> str:
    """Return a layout as text."""
    if placements is None:
        return "one value per rank"
    parts = []
    for name, placement in zip(grid.names, placements, strict=True):
        if isinstance(placement, Partial):
            parts.append(f"partial {placement.reduce_op} over {name}")
        elif not isinstance(placement, Replicate):
            parts.append(f"dim {placement.dim} over {name}")
    return ", ".join(parts) or "whole on every rank"
