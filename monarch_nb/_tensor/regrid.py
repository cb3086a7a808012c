"""Tensors over several grids of the same ranks, as those of a mesh with two axes and of a module whose rows
are split over all of its ranks: an operation on both has them over one grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.protocol import Hole
from monarch_nb._tensor.metadata import Grid, Meta, Placements, contiguous, intern
from monarch_nb._tensor.tensor import Tensor


def can_regrid(metas: Sequence[Meta], grid: Grid | None = None) -> bool:
    """Say whether tensors can be brought over a grid, that of the first one by default: each is one tensor
    over the same ranks, in the same order, and none is borrowed.
    """
    grid = grid or metas[0].grid
    return all(
        each.placements is not None
        and each.grid is each.grid.base
        and each.grid.engine is grid.engine
        and each.grid.ranks == grid.ranks
        for each in metas
    )


def over_one_grid(tensors: Sequence[Tensor], written: Sequence[Tensor], values: Any) -> Any:
    """Return an operation's arguments with all tensors over one grid: that of what is written, or else of the
    largest one, which stays where it is.
    """
    grid = max(written or tensors, key=lambda each: each.mesh_meta.num_bytes).mesh_meta.grid

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.mesh_meta.grid is grid:
            return value
        return over_grid(value, grid)

    return pytree.tree_map(move, values)


def over_grid(tensor: Tensor, grid: Grid, wanted: Placements | None = None) -> Tensor:
    """Return a tensor over another grid of its ranks, without a history. Each rank keeps its part, if the
    tensor can lie so over the other grid; else all ranks get all of it.

    Args:
        wanted: the layout that it will get there; if rows are split over all ranks in it, they get theirs.
    """
    meta = tensor.mesh_meta
    engine = meta.grid.engine
    placements, wanted = _split_alike(meta, wanted) or _layouts(meta, grid)
    source = tensor
    if placements != meta.placements:
        laid = meta.with_layout(placements)
        source = engine.own("own.redistribute", (Hole(0), placements), [tensor], laid)
    size = _part_size(meta, placements)
    part = engine.own(
        "own.local", (Hole(0),), [source], intern(size, contiguous(size), meta.dtype, grid, None)
    )
    whole = intern(meta.size, contiguous(meta.size), meta.dtype, grid, wanted)
    found: Tensor = engine.own("own.from_local", (Hole(0), grid.number, wanted), [part], whole)
    return found


def _layouts(meta: Meta, grid: Grid) -> tuple[Placements, Placements]:
    """Return a layout that a tensor can have over its grid, and the same over the other one."""
    placements = meta.placements or ()
    are_parts = all(each.is_shard() or each.is_replicate() for each in placements)
    is_even = are_parts and _is_even(meta, placements)
    if is_even and meta.grid.shape == grid.shape:
        return placements, placements
    if is_even and len(set(placements)) == 1:
        return placements, placements[:1] * len(grid.shape)
    return meta.grid.replicated, grid.replicated


def _split_alike(meta: Meta, wanted: Placements | None) -> tuple[Placements, Placements] | None:
    """Return the layout over a tensor's grid that gives each rank what it has in one over another grid, if
    that is one split over all axes.
    """
    if not wanted or not wanted[0].is_shard() or len(set(wanted)) > 1:
        return None
    placements = wanted[:1] * len(meta.grid.shape)
    return (placements, wanted) if _is_even(meta, placements) else None


def _is_even(meta: Meta, placements: Placements) -> bool:
    """Say whether all ranks have parts of one size in a layout."""
    splits: dict[int, int] = {}
    for num, each in zip(meta.grid.shape, placements, strict=True):
        if each.is_shard():
            splits[each.dim] = splits.get(each.dim, 1) * num
    return all(meta.size[dim] % num == 0 for dim, num in splits.items())


def _part_size(meta: Meta, placements: Placements) -> tuple[int, ...]:
    nums = [
        math.prod(
            n for n, p in zip(meta.grid.shape, placements, strict=True) if p.is_shard() and p.dim == dim
        )
        for dim in range(len(meta.size))
    ]
    return tuple(size // num for size, num in zip(meta.size, nums, strict=True))


class Regrid(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that brings a tensor over another grid; the gradient comes back over its own."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, grid: Grid, wanted: Placements | None = None) -> Any:
        """Bring the tensor over the grid."""
        ctx.grid = tensor.mesh_meta.grid
        return over_grid(tensor, grid, wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Bring the gradient back."""
        return over_grid(gradients[0], ctx.grid), None, None
