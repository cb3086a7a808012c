"""Operations on whole tensors: those that can't be computed on shards, and those that draw random numbers;
and on tensors that are laid out anew first.

Every rank does the whole operation and keeps its part. Random numbers are the same on all ranks that way, and
don't depend on how a tensor is sharded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.cuts import Cut
from monarch_nb._rank.tensor.private import is_replicated, laid_out, local_of, spec_of, without_masks, wrapped
from monarch_nb._rank.tensor.protocol import Definition

Operation = Callable[..., Any]
_CONTAINERS = (list, tuple, dict)
LIKES = frozenset({torch.ops.aten.ones_like.default, torch.ops.aten.full_like.default})
"""Operations that look at the size of their input only."""


def on_whole(op: Operation, plan: Definition, mesh: DeviceMesh) -> Operation:
    """Return the function that does `op` on whole tensors."""
    fills = op in LIKES

    def do(*args: Any, **kwargs: Any) -> Any:
        inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        written = {id(inputs[n]) for n in plan.writes}
        wholes = {id(x): _whole(x, fills or (plan.is_random and id(x) in written)) for x in inputs}
        local_args, local_kwargs = pytree.tree_map(lambda x: wholes.get(id(x), x), (args, kwargs))
        result = op(*local_args, **local_kwargs)
        for n in plan.writes:
            _write_back(inputs[n], wholes[id(inputs[n])], mesh)
        return _spread(result, plan, mesh)

    return do


def on_moved(op: Operation, moved: Sequence[tuple[int, Sequence[Any]]]) -> Operation:
    """Return the function that does `op` on tensors of which some are laid out anew before."""
    layouts = dict(moved)
    relay = redistributed if getattr(op, "is_view", True) else relaid

    def do(*args: Any, **kwargs: Any) -> Any:
        numbers = itertools.count()

        def move(value: Any) -> Any:
            return relay(value, layouts.get(next(numbers))) if isinstance(value, DTensor) else value

        if kwargs or any(type(each) in _CONTAINERS for each in args):
            args, kwargs = pytree.tree_map(move, (args, kwargs))
            return op(*args, **kwargs)
        return op(*map(move, args))

    return do


def redistributed(value: DTensor, placements: Sequence[Any] | None) -> DTensor:
    """Return a tensor in another layout; in its own for None."""
    if placements is None or value.placements == tuple(placements):
        return value
    return value.redistribute(placements=placements)


def relaid(value: DTensor, placements: Sequence[Any] | None) -> DTensor:
    """Return a tensor in another layout, to be read only: a part of what this rank has lies in its memory."""
    if placements is None or not is_replicated(value):
        return redistributed(value, placements)
    return in_place(local_of(value), value.device_mesh, placements)


def seeded(op: Operation) -> Operation:
    """Return `op` with a first argument more: the seed of the random numbers that it draws. The rank's own
    generator stays as it is.
    """

    def do(seed: float, *args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(int(seed))
            return op(*args, **kwargs)

    return do


def summed_at_once(op: Operation) -> Operation:
    """Return `op`, which looks up rows of a table that ranks share, with the sum of what they find.

    Torch keeps which rows are a rank's own for one sum, and in one place for all tensors of a size.
    """

    def do(*args: Any, **kwargs: Any) -> Any:
        found = op(*args, **kwargs)
        return (
            redistributed(found, without_masks(spec_of(found)).placements)
            if isinstance(found, DTensor)
            else found
        )

    return do


def resolved(op: Operation) -> Operation:
    """Return `op`, which takes no conjugate that isn't computed yet. The controller has no such flag, so
    autograd there doesn't resolve it.
    """

    def do(value: torch.Tensor) -> Any:
        local = local_of(value) if isinstance(value, DTensor) else value
        if local.is_conj():
            local = local.resolve_conj()
            value = wrapped(local, spec_of(value)) if isinstance(value, DTensor) else local
        return op(value)

    return do


def with_workspace(op: Operation) -> Operation:
    """Return an operation whose workspace its backward needs: it makes none where no gradients are recorded,
    and here the controller records them.
    """

    def do(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            found = op(*args, **kwargs)
        return [each.detach() for each in found]

    return do


def place(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    """Return this rank's part of a tensor that all ranks have."""
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, placements)


def in_place(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    """Return this rank's part as `place` does, in the memory of the whole if it can be."""
    axes = tuple(n for n, each in enumerate(placements) if each.is_shard())
    return laid_out(Cut(mesh, placements, axes)(whole), mesh, placements, whole.shape, whole.stride())


def _part(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    if whole.layout != torch.strided:
        raise TypeError("the result is sparse; tensors of a mesh are dense. Bring the tensor here: x.full()")
    splits = any(not each.is_replicate() for each in placements)
    return place(whole.contiguous() if splits else whole, mesh, placements)


def _whole(value: torch.Tensor, only_shape: bool) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return value
    if only_shape and not is_replicated(value):
        return torch.empty(value.shape, dtype=value.dtype, device=local_of(value).device)
    return value.full_tensor()


def _write_back(target: torch.Tensor, whole: torch.Tensor, mesh: DeviceMesh) -> None:
    if isinstance(target, DTensor) and local_of(target) is not whole:
        layout = [Replicate() if each.is_partial() else each for each in target.placements]
        part = local_of(place(whole, mesh, layout))
        for axis, each in enumerate(target.placements):  # of a sum, one rank has all, and the others nothing
            if each.is_partial("sum") and mesh.get_local_rank(axis):
                part = torch.zeros_like(part)
        local = local_of(target)
        # The whole of a replicated tensor is the part itself, as a view, whose strides may differ where a
        # dimension has one element: torch refuses to copy one onto the other.
        if local.data_ptr() != part.data_ptr():
            local.copy_(part)


def _spread(result: Any, plan: Definition, mesh: DeviceMesh) -> Any:
    if isinstance(result, torch.Tensor):
        return _part(result, mesh, plan.placements[0]) if plan.outputs else result
    if not isinstance(result, (list, tuple)) or not plan.outputs:
        return result
    parts: Mapping[int, Any] = dict(zip(plan.outputs, plan.placements, strict=True))
    return [_part(each, mesh, parts[n]) if n in parts else each for n, each in enumerate(result)]
