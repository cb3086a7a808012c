"""Strides of a rank's part of a tensor: those that the whole has, as the controller knows it.

Where an operation has to redistribute its inputs first, its local result may lie otherwise in memory than the
result of one process would. Then a later view, which the controller has found possible, isn't.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from monarch_nb._rank.tensor.compiler import Command
from monarch_nb._rank.tensor.private import local_of


def strides_of_part(
    size: Sequence[int], stride: Sequence[int], part: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the strides of a part that lies in memory as the whole does; None if that has gaps, or overlaps.

    >>> strides_of_part((8, 2, 6, 8), (96, 8, 16, 1), (2, 2, 6, 8))
    (96, 8, 16, 1)
    >>> strides_of_part((4, 6), (1, 4), (2, 6))
    (1, 2)
    >>> strides_of_part((4, 6), (0, 1), (2, 6))
    """
    found, dense, here = [0] * len(size), 1, 1
    for dim in sorted(range(len(size)), key=lambda d: (stride[d], size[d] != 1)):
        if size[dim] != 1 and stride[dim] != dense:
            return None
        found[dim] = here
        dense *= size[dim]
        here *= part[dim]
    return tuple(found)


def part_bytes(num_bytes: int, sizes: Sequence[int], placements: Sequence[Any]) -> int:
    """Return the size of a rank's part of a tensor, where parts are equally large.

    Args:
        sizes: of the device mesh's axes.
    """
    return num_bytes // math.prod(n for n, each in zip(sizes, placements, strict=True) if each.is_shard())


def planned_strides(value: Any) -> tuple[int, ...] | None:
    """Return the strides that this rank's part is to have, if it has others."""
    if not isinstance(value, DTensor):
        return None
    return _planned(local_of(value), value.shape, value.stride())


def _planned(local: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    if local.layout != torch.strided or not local.numel():
        return None
    wanted = strides_of_part(size, stride, local.shape)
    pairs = zip(local.shape, local.stride(), wanted or local.stride(), strict=True)
    return wanted if any(size > 1 and has != wants for size, has, wants in pairs) else None


def laid(command: Command, num_outputs: int) -> Command:
    """Return a command that lays out its new values as the controller knows them."""

    def do(table: Any, words: Sequence[int], at: int) -> int:
        end = command(table, words, at)
        lay_out(table, words[end - num_outputs : end])
        return end

    return do


def lay_out(table: Any, slots: Sequence[int]) -> bool:
    """Lay out the values in these slots, which nothing else refers to; return whether one lay otherwise."""
    is_any = False
    for slot in slots:
        wanted = planned_strides(table[slot])
        if wanted is not None:
            is_any = True
            value = table[slot]
            local = local_of(value)
            table[slot] = DTensor.from_local(
                _copied(local, wanted), value.device_mesh, value.placements,
                run_check=False, shape=value.shape, stride=value.stride(),
            )  # fmt: skip
    return is_any


def laid_part(local: torch.Tensor, spec: Any) -> torch.Tensor:
    """Return a part that lies in memory as the whole does, whose layout is given."""
    wanted = _planned(local, spec.tensor_meta.shape, spec.tensor_meta.stride)
    return local if wanted is None else _copied(local, wanted)


def _copied(local: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    made = torch.empty_strided(local.shape, strides, dtype=local.dtype, device=local.device)
    return made.copy_(local)
