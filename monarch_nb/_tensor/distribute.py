"""Distributes plain tensors to ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from monarch_nb._rank.tensor.protocol import Hole
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.metadata import Placements, placements_of
from monarch_nb._tensor.regrid import Regrid, can_regrid
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import ShardingError, WrongTensor


def distribute(tensor: torch.Tensor, mesh: Any, sharding_spec: Sequence[Any] | None = None) -> Tensor:
    """Distribute a tensor over a mesh: each rank gets its part. The result is still one tensor.

    Args:
        tensor: a plain tensor of any shape; or a tensor of this mesh, whose layout is changed.
        mesh: a `monarch_nb.distributed.Mesh`, or any other mesh.
        sharding_spec: for each dimension of the tensor the axis of the mesh over which it's split, several
            axes, or None. Without a spec, every rank has the whole tensor.

    Returns:
        A tensor of the same shape, type and `requires_grad`.

    Raises:
        MeshUsageError: for an axis that the mesh doesn't have, or a spec that's longer than the tensor.
        SupervisionError: (a DeviceMeshError) if the mesh is dead.

    Example:
        >>> spec = ["data_parallel", None]  # doctest: +SKIP
        >>> dt = monarch_nb.distribute(torch.randn(8, 4), mesh, sharding_spec=spec)  # doctest: +SKIP
    """
    if not isinstance(tensor, torch.Tensor):
        raise WrongTensor(
            f"distribute takes a tensor, not {type(tensor).__name__}: torch.as_tensor(x) makes one"
        )
    grid = grid_of(mesh)
    placements = placements_of(sharding_spec or [], tensor.shape, grid)
    if isinstance(tensor, Tensor):
        if tensor.mesh_meta.grid is not grid and can_regrid([tensor.mesh_meta], grid):
            tensor = Regrid.apply(tensor, grid)
        return redistribute(tensor, sharding_spec or [])
    made = grid.engine.put(tensor, grid, placements)
    return made.requires_grad_(tensor.requires_grad)  # type: ignore[no-any-return]


def redistribute(tensor: Tensor, sharding_spec: Sequence[Any]) -> Tensor:
    """Return the same tensor in another layout. Gradients flow through.

    Raises:
        ShardingError: if each rank has a value of its own.
    """
    meta = tensor.mesh_meta
    if meta.placements is None:
        raise ShardingError(
            "each rank has a value of its own of this tensor: monarch_nb.as_global(x, [...]) makes "
            "one of them first"
        )
    found: Tensor = _Redistribute.apply(tensor, placements_of(sharding_spec, meta.size, meta.grid))
    return found


def relaid(tensor: Tensor, placements: Placements) -> Tensor:
    """Return a tensor in a layout, the same object if it has it already. Gradients flow through."""
    if tensor.placements == placements:
        return tensor
    found: Tensor = _Redistribute.apply(tensor, placements)
    return found


class _Redistribute(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of a layout change: the gradient gets the input's layout."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, placements: Any) -> Any:
        """Change the layout of the tensor."""
        ctx.layout = tuple(
            each if each.is_shard() else tensor.mesh_meta.grid.replicated[0]
            for each in tensor.placements or ()
        )
        return laid_out(tensor, placements)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Change the layout of the gradient to that of the input."""
        return laid_out(gradients[0], ctx.layout), None


def laid_out(tensor: Tensor, placements: Any) -> Tensor:
    """Return a tensor in a layout; if it has that layout already, another object of the same tensor."""
    meta = tensor.mesh_meta
    if meta.placements == placements:
        return tensor.detach()  # type: ignore[no-any-return]
    found: Tensor = meta.grid.engine.own(
        "own.redistribute", (Hole(0), placements), [tensor], meta.with_layout(placements)
    )
    return found
