"""Fetches values of tensors to this process, and makes tensors of which each rank has its own value."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.private import tensor_text
from monarch_nb._rank.tensor.protocol import Hole
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.metadata import Grid, contiguous, intern, placements_of
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.actor import Future
from monarch_nb.exceptions import MeshUsageError, ShardingError, WrongTensor


def fetch_shard(obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> Future[Any]:
    """Request one rank's part of a tensor, without waiting.

    Args:
        obj: a tensor of a mesh, or lists, tuples and dicts of tensors.
        shard: the rank's coordinates by axis of the mesh; 0 for axes that aren't given.
        coordinates: the coordinates as keyword arguments, instead of `shard`.

    Returns:
        a future of the same structure with plain tensors.

    Raises:
        MeshUsageError: for an axis or a coordinate that doesn't exist.

    Example:
        >>> monarch_nb.fetch_shard(loss, gpus=1).get()       # doctest: +SKIP
    """
    leaves, structure = pytree.tree_flatten(obj)
    at = {**(shard or {}), **coordinates}
    asked: dict[int, Any] = {}
    for n, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            place = _rank_at(leaf.mesh_meta.grid, None, at)
            asked[n] = leaf.engine.fetch_later(leaf, "each").then(operator.itemgetter(place))
    if not asked:
        check(obj, "fetch_shard")
    last = max(asked)

    def together(value: Any) -> Any:
        found = {n: value if n == last else each.get() for n, each in asked.items()}
        return pytree.tree_unflatten([found.get(n, leaf) for n, leaf in enumerate(leaves)], structure)

    return asked[last].then(together)  # type: ignore[no-any-return]


def inspect(
    tensor: Tensor, shard: Mapping[str, int] | None = None, *, rank: int | None = None, **coordinates: int
) -> torch.Tensor:
    """Return one rank's part of a tensor: its shard, or its own value.

    Args:
        shard: the rank's coordinates by axis of the mesh; 0 for axes that aren't given.
        rank: the rank's number in the mesh, instead of coordinates.
        coordinates: the coordinates as keyword arguments, instead of `shard`.

    Raises:
        MeshUsageError: for a rank or an axis that doesn't exist.

    Example:
        >>> monarch_nb.inspect(dt, data_parallel=1)  # doctest: +SKIP
    """
    check(tensor, "inspect")
    place = _rank_at(tensor.mesh_meta.grid, rank, {**(shard or {}), **coordinates})
    found: torch.Tensor = tensor.engine.fetch(tensor, "each")[place]
    return found


def _rank_at(grid: Grid, rank: int | None, coordinates: dict[str, int]) -> int:
    sizes = grid.sizes
    unknown = set(coordinates) - set(sizes)
    if unknown:
        raise MeshUsageError(
            f"the mesh has no axis {sorted(unknown)[0]!r}: its axes are {', '.join(map(repr, sizes))}"
        )
    if rank is not None:
        if coordinates or not 0 <= rank < len(grid.ranks):
            raise MeshUsageError(
                f"rank={rank}: a rank from 0 to {len(grid.ranks) - 1} is wanted, or coordinates, as "
                f"in {grid.names[0]}=0"
            )
        return grid.ranks[rank]
    index = 0
    for name, size in sizes.items():
        at = coordinates.get(name, 0)
        if not 0 <= at < size:
            raise MeshUsageError(f"{name}={at}: the axis has positions 0 to {size - 1}")
        index = index * size + at
    return grid.ranks[index]


def per_rank(tensor: Tensor) -> Tensor:
    """Return each rank's part of a global tensor as a value of its own. All parts must have the same shape.

    Raises:
        ShardingError: if a dimension can't be split evenly.
    """
    check(tensor, "per_rank")
    meta = tensor.mesh_meta
    if meta.placements is None:
        return tensor
    size = list(meta.size)
    for axis, placement in zip(meta.grid.shape, meta.placements, strict=True):
        if placement.is_shard():
            if size[placement.dim] % axis:
                raise ShardingError(
                    f"{meta}: {size[placement.dim]} rows over {axis} ranks aren't equal parts; "
                    "redistribute it first"
                )
            size[placement.dim] //= axis
    own = intern(size, contiguous(size), meta.dtype, meta.grid, None)
    found: Tensor = meta.grid.engine.own("own.local", (Hole(0),), [tensor.detach()], own)
    return found


def as_global(tensor: Tensor, sharding_spec: Sequence[Any]) -> Tensor:
    """Return the ranks' own values as one global tensor. Dimensions are sharded over the axes in
    `sharding_spec`; along the other axes all values must be equal.

    Example:
        >>> x = monarch_nb.as_global(batch, ["data_parallel"])  # doctest: +SKIP
    """
    check(tensor, "as_global")
    meta = tensor.mesh_meta
    if meta.placements is not None:
        return tensor
    placements = placements_of(sharding_spec, meta.size, meta.grid)
    size = list(meta.size)
    for axis, placement in zip(meta.grid.shape, placements, strict=True):
        if placement.is_shard():
            size[placement.dim] *= axis
    whole = intern(size, contiguous(size), meta.dtype, meta.grid, placements)
    found: Tensor = meta.grid.engine.own(
        "own.from_local", (Hole(0), meta.grid.number, placements), [tensor.detach()], whole
    )
    return found


def replicated(tensor: torch.Tensor, mesh: Any) -> Tensor:
    """Send a plain tensor to all ranks, as a value of each rank's own."""
    grid = grid_of(mesh)
    found: Tensor = grid.engine.put(tensor, grid, None)
    return found


def show(tensor: Tensor) -> str:
    """Return each rank's part of a tensor as text.

    Example:
        >>> print(monarch_nb.show(dt))  # doctest: +SKIP
    """
    check(tensor, "show")
    values = tensor.engine.fetch(tensor, "each")
    grid = tensor.mesh_meta.grid
    lines = [repr(tensor.mesh_meta)]
    for rank in grid.ranks:
        lines.append(f"{_point(grid, rank)}: {tensor_text(values[rank], 2)}")
    return "\n".join(lines)


def _point(grid: Grid, rank: int) -> str:
    index, parts = grid.ranks.index(rank), []
    for name, size in reversed(grid.sizes.items()):
        index, at = divmod(index, size)
        parts.append(f"{name}={at}")
    return ", ".join(reversed(parts))


def check(tensor: Any, what: str) -> None:
    """Raise if a value isn't a tensor of a mesh.

    Raises:
        WrongTensor: if it isn't; the error names its type.
    """
    if not isinstance(tensor, Tensor):
        raise WrongTensor(
            f"{what} takes a tensor of a mesh, not a plain {type(tensor).__name__}: "
            "monarch_nb.distribute(t, mesh, ...) makes one"
        )
