"""The mean of a loss over rows that ranks share, where rows count differently: by the weight of their class,
or not at all (`ignore_index`).

DTensor takes the mean of the ranks' means, which is another number, and none at all where a rank's rows are
all ignored. Here each rank's mean counts as much as its rows do:

    loss = sum over ranks of mean[rank] * weight[rank] / sum over ranks of weight[rank]

The summands are the result's parts. The sum of weights takes a message among ranks only where no rank has all
targets; DTensor would send one each time, in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monarch_nb._rank.tensor.private import laid_out, local_of
from monarch_nb._rank.tensor.whole import relaid

MEAN = 1
"""Number of the mean among reductions, as torch counts them."""
_CLASSES = 1
"""The dimension of the classes; the target has the others."""
WITH_TARGETS = frozenset({torch.ops.aten.nll_loss_forward.default, torch.ops.aten.nll_loss2d_forward.default})


def is_mean_of_rows(op: Any, args: Sequence[Any]) -> bool:
    """Say whether an operation is a mean that takes `mean_of_rows`."""
    return op in WITH_TARGETS and args[3] == MEAN


def rows_of_loss(spec: Any, _target: Any, weight: Any, reduction: int, _ignored: int) -> Any:
    """Yield the layouts of a loss with targets over one axis of the mesh (see `rules`)."""
    for dim in range(spec.ndim):
        if dim != _CLASSES and spec.ndim > 1:
            row = Shard(dim - (dim > _CLASSES))
            total = Replicate() if reduction in (0, MEAN) else Partial("sum")
            inputs = [Shard(dim), row, *([] if weight is None else [Replicate()])]
            yield [Partial("sum") if reduction else row, total], inputs


def mean_of_rows(op: Callable[..., Any], moved: Sequence[tuple[int, Sequence[Any]]]) -> Callable[..., Any]:
    """Return the function that does `op`, one of `WITH_TARGETS`, on tensors of the mesh.

    Args:
        moved: inputs that are laid out anew for it, and how.
    """
    layouts: Mapping[int, Sequence[Any]] = dict(moved)

    def do(rows: DTensor, target: DTensor, weight: DTensor | None, reduction: int, ignored: int) -> Any:
        parts = relaid(rows, layouts.get(0)), relaid(target, layouts.get(1))
        weights = None if weight is None else relaid(weight, layouts.get(2))
        mesh, placements = parts[1].device_mesh, parts[1].placements
        along = [Partial("sum") if each.is_shard() else Replicate() for each in placements]
        local, local_target = map(local_of, parts)
        local_weights = None if weights is None else local_of(weights)
        own = _weight(local_target, local_weights, ignored)
        if all(each.is_replicate() for each in target.placements):
            total = _weight(local_of(target), local_weights, ignored)
        else:
            total = DTensor.from_local(own, mesh, along, run_check=False).full_tensor()
        part = own / total
        if local_target.numel():
            mean = op(local, local_target, local_weights, reduction, ignored)[0]
            part = torch.where(own == 0, part, mean * part)
        whole = [Replicate()] * mesh.ndim
        return tuple(
            laid_out(each.to(rows.dtype), mesh, layout, (), ())
            for each, layout in ((part, along), (total, whole))
        )

    return do


def _weight(target: torch.Tensor, weights: torch.Tensor | None, ignored: int) -> torch.Tensor:
    """Return how much rows count: the sum of the weights of their classes."""
    counts = target != ignored
    if weights is None:
        return counts.sum(dtype=torch.float32)
    precision = torch.promote_types(weights.dtype, torch.float32)
    return torch.where(counts, weights.to(precision)[torch.where(counts, target, 0)], 0.0).sum()
