"""Coordinates of ranks along the axes of a mesh, as tensors, and process groups along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from monarch_nb._rank.tensor.protocol import GroupHole
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.metadata import Grid, intern
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError


class RemoteProcessGroup:
    """The process groups of a mesh along some axes. As an argument of a function on the ranks it becomes the
    rank's `torch.distributed.ProcessGroup`.

    Attributes:
        dims: the axes.
        hole: the placeholder for it in a command.
    """

    def __init__(self, grid: Grid, dims: Sequence[str]) -> None:
        self.dims = tuple(dims)
        self._size = math.prod(grid.sizes[name] for name in self.dims)
        found = grid if len(self.dims) == 1 else _flattened(grid, self.dims)
        name = self.dims[0] if len(self.dims) == 1 else found.names[-1]
        self.hole = GroupHole(found.base.number, found.names.index(name))

    def size(self) -> int:
        """Return the number of ranks in each group."""
        return self._size

    def __repr__(self) -> str:
        return f"RemoteProcessGroup(dims={self.dims}, size={self._size})"


def process_group(mesh: Any, dims: Sequence[str] | str) -> RemoteProcessGroup:
    """Return the process groups along axes: the ranks of one group differ only in their coordinates along
    these axes.

    Raises:
        MeshUsageError: for an axis that the mesh doesn't have.

    Example:
        >>> group = procs.process_group("gpus")              # doctest: +SKIP
        >>> monarch_nb.remote(all_reduce)(x, group)          # doctest: +SKIP
    """
    grid = grid_of(mesh)
    names = (dims,) if isinstance(dims, str) else tuple(dims)
    for name in names:
        _axis(grid, name)
    if not names or len(set(names)) != len(names):
        raise MeshUsageError(f"a process group is along one axis or several different ones; not {dims!r}")
    return RemoteProcessGroup(grid, names)


def _axis(grid: Grid, name: str) -> int:
    if name not in grid.names:
        raise MeshUsageError(
            f"the mesh has no axis {name!r}: its axes are {', '.join(map(repr, grid.names))}"
        )
    return grid.names.index(name)


def _flattened(grid: Grid, dims: Sequence[str]) -> Grid:
    """Return a grid of the same ranks in which some axes are merged into one, the last."""
    rest = [name for name in grid.names if name not in dims]
    order = [grid.names.index(name) for name in (*rest, *dims)]
    ranks = torch.tensor(grid.ranks).view(grid.shape).permute(order).flatten().tolist()
    size = math.prod(grid.sizes[name] for name in dims)
    found: Grid = grid.engine.grid(
        [*(grid.sizes[name] for name in rest), size], [*rest, "_".join(dims)], ranks
    )
    return found


def rank_tensor(mesh: Any, dim: str) -> Tensor:
    """Return each rank's coordinate along an axis, as a tensor of which each rank has its own value.

    Raises:
        MeshUsageError: for an axis that the mesh doesn't have.

    Example:
        >>> monarch_nb.inspect(procs.rank_tensor("gpus"), gpus=1)  # doctest: +SKIP
        tensor(1)
    """
    grid = grid_of(mesh)
    axis = _axis(grid, dim)
    found: Tensor = grid.engine.own(
        "own.coordinate", (grid.base.number, axis), [], intern((), (), torch.int64, grid, None)
    )
    return found


def rank_tensors(mesh: Any) -> dict[str, Tensor]:
    """Return the coordinates of the ranks along all axes, by name."""
    return {name: rank_tensor(mesh, name) for name in grid_of(mesh).names}
