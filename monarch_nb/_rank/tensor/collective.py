"""Collectives on values that each rank has of its own: reductions along an axis of a mesh, and transfers
between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist

_OPS = {
    "sum": "SUM", "avg": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX",
    "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip
"""The process group's name of each reduction. An average is a divided sum: gloo has none."""


def reduced(value: torch.Tensor, group: Any, reduction: str, scatter: bool) -> torch.Tensor:
    """Return the reduction of a group's values.

    Args:
        value: this rank's, of the same shape on all.
        reduction: one of `_OPS`, or "stack": all values, along a new first dimension.
        scatter: each rank gets its part along the first dimension of the result, which has as many entries
            as there are ranks.
    """
    if reduction == "stack":
        return _exchanged(value, group) if scatter else _stacked(value, group)
    found = value.clone(memory_format=torch.contiguous_format)
    options = dist.AllreduceOptions()
    options.reduceOp = attrgetter(_OPS[reduction])(dist.ReduceOp)
    group.allreduce([found], options).wait()
    if reduction == "avg":
        found = found / group.size()
    return found[group.rank()].clone() if scatter else found


def _stacked(value: torch.Tensor, group: Any) -> torch.Tensor:
    parts = [torch.empty(value.shape, dtype=value.dtype, device=value.device) for _ in range(group.size())]
    group.allgather([parts], [value.contiguous()]).wait()
    return torch.stack(parts)


def _exchanged(value: torch.Tensor, group: Any) -> torch.Tensor:
    found = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    group.alltoall_base(found, value.contiguous(), [], []).wait()
    return found


def moved(
    value: Any, group: Any, rank: int, pairs: Sequence[tuple[int, int]], empty: Callable[[], torch.Tensor]
) -> torch.Tensor | None:
    """Send this rank's value to all that it's paired with; return the value that comes, if one does.

    Args:
        group: of all ranks.
        pairs: from which rank to which. No rank gets two.
        empty: makes room for a value.
    """
    targets = [target for source, target in pairs if source == rank and target != rank]
    source = next((source for source, target in pairs if target == rank), None)
    out = value.contiguous() if targets else None
    works = [group.send([out], target, 0) for target in targets]
    if source is None:
        found = None
    elif source == rank:
        found = value.clone()
    else:
        found = empty()
        group.recv([found], source, 0).wait()
    for work in works:
        work.wait()
    return found
