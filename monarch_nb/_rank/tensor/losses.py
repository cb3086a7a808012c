"""The mean of a loss over rows that ranks share, where rows count differently: by the weight of their class,
or not at all (`ignore_index`).

DTensor takes the mean of the ranks' means, which is another number, and none at all where a rank's rows are
all ignored. Here each row counts as much on one rank as on another:

    loss = sum over ranks of (sum of losses)[rank] / sum over ranks of (sum of weights)[rank]

The summands are the result's parts. Only the engine of tensors does it so: DTensors of the user's own, in a
cell or a function, are as torch has them. In half precision, where sums of many rows would overflow, a
rank's sum is its mean times its weights. The sum of weights takes a message among ranks only where no rank
has all targets; DTensor would send one each time, in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monarch_nb._rank.tensor.cuts import Cut, axes_to_cut
from monarch_nb._rank.tensor.private import is_replicated, laid_out, local_of
from monarch_nb._rank.tensor.whole import relaid

MEAN, SUM = 1, 2
"""Numbers of reductions, as torch counts them."""
IGNORED = -100
"""The class whose rows don't count, unless one says another."""
_SUMMABLE = frozenset({torch.float32, torch.float64})
"""Dtypes in which the sum of many rows' losses is exact enough, and doesn't overflow."""
_CLASSES = 1
"""The dimension of the classes; the target has the others."""
Strategy = Callable[[Any], Any]
WITH_TARGETS = frozenset({torch.ops.aten.nll_loss_forward.default, torch.ops.aten.nll_loss2d_forward.default})


_adds_rows: ContextVar[bool] = ContextVar("monarch_nb_adds_rows", default=False)


@contextmanager
def rows_added_up() -> Iterator[None]:
    """Look up layouts in a block as they are of `MeanOfRows`."""
    token = _adds_rows.set(True)
    try:
        yield
    finally:
        _adds_rows.reset(token)


def means_as_torch(ours: Strategy, of_torch: Strategy) -> Strategy:
    """Return a strategy of one of `WITH_TARGETS`: for means that of torch, but where rows are added up.

    Torch keeps what it has looked up: within `rows_added_up` it mustn't.
    """

    def strategy(schema: Any) -> Any:
        is_torchs = schema.args_schema[3] == MEAN and not _adds_rows.get()
        return of_torch(schema) if is_torchs else ours(schema)

    return strategy


def is_mean_of_rows(op: Any, args: Sequence[Any]) -> bool:
    """Say whether an operation is a mean that takes `MeanOfRows`."""
    return op in WITH_TARGETS and args[3] == MEAN


def rows_of_loss(spec: Any, _target: Any, weight: Any, reduction: int, _ignored: int) -> Any:
    """Yield the layouts of a loss with targets over one axis of the mesh (see `rules`)."""
    for dim in range(spec.ndim):
        if dim != _CLASSES and spec.ndim > 1:
            row = Shard(dim - (dim > _CLASSES))
            total = Replicate() if reduction in (0, MEAN) else Partial("sum")
            inputs = [Shard(dim), row, *([] if weight is None else [Replicate()])]
            yield [Partial("sum") if reduction else row, total], inputs


class MeanOfRows:
    """The function that does one of `WITH_TARGETS` on tensors of the mesh. It's of one plan, so that layouts
    are the same each time.

    Args:
        op: the operation.
        moved: inputs that are laid out anew for it, and how.
    """

    def __init__(self, op: Callable[..., Any], moved: Sequence[tuple[int, Sequence[Any]]]) -> None:
        self._op, self._layouts = op, dict(moved)
        self._along: Sequence[Any] = ()
        """The layout of the result: the sum over the axes along which rows are split."""
        self._cut: Cut | None = None
        """Takes this rank's targets, if it has all."""

    def __call__(
        self, rows: DTensor, target: DTensor, weight: DTensor | None, reduction: int, ignored: int
    ) -> tuple[DTensor, DTensor]:
        """Return the loss and the sum of weights, as torch does."""
        mesh, placements = target.device_mesh, self._layouts.get(1, target.placements)
        if not self._along:
            self._along = [Partial("sum") if each.is_shard() else Replicate() for each in placements]
            if axes := axes_to_cut(target.placements, placements):
                self._cut = Cut(mesh, placements, axes)
        local = local_of(relaid(rows, self._layouts.get(0)))
        weights = None if weight is None else local_of(relaid(weight, self._layouts.get(2)))
        cut = self._cut
        targets = local_of(relaid(target, placements)) if cut is None else cut(local_of(target))
        own = weight_of(targets, weights, ignored)
        if is_replicated(target):
            total = own if self._cut is None else weight_of(local_of(target), weights, ignored)
        else:
            total = DTensor.from_local(own, mesh, self._along, run_check=False).full_tensor()
        part = self._part(local, targets, weights, ignored, own, total)
        whole = [Replicate()] * mesh.ndim
        return laid_out(part, mesh, self._along, (), ()), laid_out(total.to(rows.dtype), mesh, whole, (), ())

    def _part(
        self, rows: Any, targets: Any, weights: Any, ignored: int, own: Any, total: Any
    ) -> torch.Tensor:
        """Return this rank's part of the mean."""
        if not targets.numel():
            return (own / total).to(rows.dtype)
        if rows.dtype in _SUMMABLE:
            return self._op(rows, targets, weights, SUM, ignored)[0] / total.to(rows.dtype)
        share = own / total
        mean = self._op(rows, targets, weights, MEAN, ignored)[0]
        return torch.where(own == 0, share, mean * share).to(rows.dtype)


def weight_of(target: torch.Tensor, weights: torch.Tensor | None, ignored: int) -> torch.Tensor:
    """Return how much rows count together: the sum of the weights of their classes.

    Args:
        target: the class of each row.
        weights: of classes; None: all count alike.
        ignored: rows of this class don't count.
    """
    counts = target != ignored
    if weights is None:
        return counts.sum(dtype=torch.float32)
    precision = torch.promote_types(weights.dtype, torch.float32)
    return torch.where(counts, weights.to(precision)[torch.where(counts, target, 0)], 0.0).sum()
