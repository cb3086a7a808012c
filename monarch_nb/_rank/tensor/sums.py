"""Sums over ranks that an operation needs of its inputs.

A gradient is often a sum that hasn't been done yet: each rank has the part of its rows. DTensor does such
sums tensor by tensor. Here small tensors go together, and all are under way at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Partial

SMALL_BYTES = 1 << 18
"""Tensors up to this size go together; the time of larger ones is that of their bytes."""
TOGETHER_BYTES = 1 << 22

Axes = tuple[int, ...]
"""Axes of the device mesh over which a tensor has to be summed."""


def axes_to_sum(has: Sequence[Any], wanted: Sequence[Any]) -> Axes | None:
    """Return over which axes a tensor has to be summed to get from one layout to another; None if that takes
    something else.

    >>> from torch.distributed.tensor import Replicate, Shard
    >>> axes_to_sum([Shard(0), Partial()], [Shard(0), Replicate()])
    (1,)
    >>> axes_to_sum([Shard(0), Partial()], [Replicate(), Replicate()])
    """
    axes = tuple(n for n, (one, other) in enumerate(zip(has, wanted, strict=True)) if one != other)
    is_sum = all(type(has[n]) is Partial and has[n].reduce_op == "sum" for n in axes)
    return axes if is_sum and all(wanted[n].is_replicate() for n in axes) else None


def summed(parts: Sequence[torch.Tensor], axes: Sequence[Axes], mesh: Any) -> list[torch.Tensor]:
    """Return the sums of tensors over ranks.

    Args:
        parts: this rank's.
        axes: of each: over which axes of the mesh.
    """
    works = []
    found: dict[int, torch.Tensor] = {}
    for numbers in _together(parts, axes):
        flat = _joined([parts[n] for n in numbers])
        found.update(zip(numbers, _taken_apart(flat, [parts[n].shape for n in numbers]), strict=True))
        *before, last = axes[numbers[0]]
        for axis in before:
            dist.all_reduce(flat, group=mesh.get_group(axis))
        works.append(dist.all_reduce(flat, group=mesh.get_group(last), async_op=True))
    for work in works:
        if work is not None:
            work.wait()
    return [found[n] for n in range(len(parts))]


def _together(parts: Sequence[torch.Tensor], axes: Sequence[Axes]) -> list[list[int]]:
    """Return which tensors are summed together, by their numbers. All ranks find the same: parts of a sum
    have one size.
    """
    found: list[list[int]] = []
    unfinished: dict[Any, tuple[list[int], int]] = {}
    for number, (part, along) in enumerate(zip(parts, axes, strict=True)):
        size, kind = part.nbytes, (part.dtype, along)
        group, taken = unfinished.get(kind, ([], 0))
        if size > SMALL_BYTES or not group or taken + size > TOGETHER_BYTES:
            group, taken = [], 0
            found.append(group)
        group.append(number)
        if size <= SMALL_BYTES:
            unfinished[kind] = group, taken + size
    return found


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return copies of tensors, one behind the other; of one only, a copy."""
    if len(parts) == 1:
        return parts[0].clone(memory_format=torch.contiguous_format)
    return torch.cat([part.reshape(-1) for part in parts])


def _taken_apart(flat: torch.Tensor, shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    if len(shapes) == 1:
        return [flat]
    pieces = flat.split([shape.numel() for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
