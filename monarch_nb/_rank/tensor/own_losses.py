"""Losses that a module computes itself, over rows that ranks share: the mean over the rows of all ranks.

Each rank runs the module on its rows, and a loss with targets is the mean of those that count: by the weight
of their class, or not at all (`ignore_index`). The mean of the ranks' means is another number, where ranks
have more or fewer of these rows, and NaN where one has none. So ranks add up how many there are, and each
divides by that:

    value[rank] = number of ranks * (sum of losses)[rank] / sum over ranks of (sum of weights)[rank]

whose mean over ranks is what one process computes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from monarch_nb._rank.tensor.losses import IGNORED, MEAN, SUM, weight_of
from monarch_nb._rank.tensor.private import graph_task, is_autocast, replace_losses

Loss = Callable[..., Any]
Means = Callable[[Loss, dict[str, Any]], Any]
"""Computes the mean of a loss. It gets torch's function, and its arguments by name."""
_NAMES = ("input", "target", "weight", "reduction", "ignore_index", "label_smoothing")
_LOW = frozenset({torch.float16, torch.bfloat16})
_state = threading.local()
_of_backward: Means | None = None
"""What computes means in threads of torch's that go back through layers, and may compute them once more."""
_is_replaced = False


@contextmanager
def means_by(compute: Means) -> Iterator[None]:
    """Have a function compute the means of losses with targets, in this thread."""
    global _of_backward, _is_replaced
    if not _is_replaced:
        _is_replaced = True
        replace_losses(_replaced)
    before = getattr(_state, "means", None), _of_backward
    _state.means = _of_backward = compute
    try:
        yield
    finally:
        _state.means, _of_backward = before


def counts_rows(given: dict[str, Any]) -> bool:
    """Say whether rows may count differently, by a loss' arguments: those that have one class each. Others
    have weights of classes.
    """
    return not given["target"].is_floating_point()


def _means() -> Means | None:
    """Return what computes means in this thread."""
    found: Means | None = getattr(_state, "means", None)
    return _of_backward if found is None and graph_task() >= 0 else found


def _replaced(by_torch: Loss) -> Loss:
    """Return what is called in place of torch's function; where nobody has said how, it does the same."""

    def loss(*args: Any, **named: Any) -> Any:
        means = _means()
        if means is None:
            return by_torch(*args, **named)
        given = dict(zip(_NAMES, args, strict=False)) | named
        return by_torch(**given) if given.get("reduction", MEAN) != MEAN else means(by_torch, given)

    return loss


class OverAllRows:
    """Computes this rank's value.

    Args:
        groups: process groups, one for each axis over which rows are split.
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        self.groups = tuple(groups)

    def __call__(self, by_torch: Loss, given: dict[str, Any]) -> Any:
        """Return the mean; see `Means`."""
        if not counts_rows(given):
            return by_torch(**given)
        rows = given["input"]
        total = sum_over_ranks(
            weight_of(given["target"], given.get("weight"), given.get("ignore_index", IGNORED))
        )
        num = math.prod(each.size() for each in self.groups)
        is_low = rows.dtype in _LOW and not is_autocast()  # sums of many rows would overflow
        summed = by_torch(**{**given, "input": rows.float() if is_low else rows, "reduction": SUM})
        found = summed * num / total.to(summed.dtype)
        return found.to(rows.dtype) if is_low else found


@torch.library.custom_op("monarch_nb::sum_over_ranks", mutates_args=())  # type: ignore[untyped-decorator]
def sum_over_ranks(value: torch.Tensor) -> torch.Tensor:
    """Return the sum of a value over the ranks of the groups in use. An operation of torch's: code that
    torch.compile makes, and keeps on disk for other processes, has no groups in it.
    """
    found, means = value.clone(), _means()
    assert isinstance(means, OverAllRows)
    for group in means.groups:
        dist.all_reduce(found, group=group)
    return found


@sum_over_ranks.register_fake  # type: ignore[untyped-decorator]
def _sum_over_ranks(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)
