"""Parts that a rank takes of what each rank has whole, as of a batch's plain targets. Nothing is sent for
them, and what is taken lies in the memory of the whole, if it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard

from monarch_nb._rank.tensor.sums import Axes


def axes_to_cut(has: Sequence[Any], wanted: Sequence[Any]) -> Axes | None:
    """Return along which axes of the mesh a tensor has to be cut to get from one layout to another; None if
    that takes something else.

    >>> axes_to_cut([Shard(0), Replicate()], [Shard(0), Shard(1)])
    (1,)
    >>> axes_to_cut([Replicate(), Shard(0)], [Shard(0), Shard(0)])  # the first axis cuts first
    >>> axes_to_cut([Shard(0)], [Replicate()])
    """
    axes = tuple(n for n, (one, other) in enumerate(zip(has, wanted, strict=True)) if one != other)
    for n in axes:
        if type(has[n]) is not Replicate or type(wanted[n]) is not Shard:
            return None
        if any(each.is_shard() and each.dim == wanted[n].dim for each in has[n + 1 :]):
            return None
    return axes


class Cut:
    """The function that returns this rank's part of a tensor, to be read only.

    Args:
        mesh: the device mesh.
        placements: the layout that is wanted.
        axes: of the mesh, along which a tensor is cut.
    """

    __slots__ = ("_steps",)

    def __init__(self, mesh: Any, placements: Sequence[Any], axes: Axes) -> None:
        self._steps = [(placements[n].dim, mesh.size(n), mesh.get_local_rank(n)) for n in axes]

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        for dim, num, at in self._steps:
            size = part.shape[dim]
            rows = -(-size // num)
            start = min(at * rows, size)
            part = part.narrow(dim, start, min(rows, size - start))
        return part.contiguous()


@dataclass(frozen=True, slots=True)
class CutHole:
    """The mark in a template for an input of which a part is taken.

    Attributes:
        index: of the input.
        cut: takes the part.
    """

    index: int
    cut: Cut
