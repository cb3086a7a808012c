"""The buckets of DDP: flat memory in which gradients are summed over the ranks.

With `gradient_as_bucket_view` gradients stay there: half the memory, and a copy less in each step. A gradient
that is read after the next backward would then have the numbers of another step, and no error. So a backward
that finds that somebody else still refers to the buckets puts their numbers back when it has ended, and gives
copies of its own gradients away.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from monarch_nb._rank.tensor.private import num_references

_MOST_HELD = 3
"""Backwards that may find gradients in use: a program that keeps gradients gets copies from then on."""


class Buckets:
    """The buckets of one module.

    Each backward calls `begin_backward`, then `end_backward`, `given_away` for each gradient, and `put_back`.

    Args:
        keep: gradients stay in them. They can't where a forward may find that layers aren't used: DDP writes
            zeros for these at once, before `begin_backward`.
    """

    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self._summed: dict[int, torch.Tensor] = {}
        """By number, those that were summed since `begin_backward`."""
        self._known: list[torch.Tensor] = []
        self._alone: list[int] = []
        """The references to each bucket's memory where only DDP has any. Empty: not known yet."""
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Buckets with their numbers before this backward, if somebody may read them after it."""
        self._num_held = 0
        self._copies = True

    def sum(self, group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sum a bucket over the ranks: a communication hook of DDP. Left alone, DDP takes the mean, and each
        rank would have to multiply its part of the output's gradient before: a copy of what is often the
        largest tensor.
        """
        if self.keep and bucket.buffer().layout == torch.strided:
            self._summed[bucket.index()] = bucket.buffer()
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def begin_backward(self) -> None:
        """Note what others refer to, before a backward writes to the buckets."""
        self._summed = {}
        if not self.keep:
            return
        counts = [num_references(each) for each in self._known]
        if not self._alone:  # nobody but DDP has ever had a part of these
            self._alone = counts
        if counts != self._alone:
            self._num_held += 1
            self._held = [(each, each.clone()) for each in self._known]
        self._copies = bool(self._held) or not self._alone or self._num_held > _MOST_HELD

    def end_backward(self) -> None:
        """See that the buckets are those of the backward before; DDP lays them out anew after the first."""
        if not self.keep:
            return
        buckets = [self._summed[number] for number in sorted(self._summed)]
        if [each.data_ptr() for each in buckets] != [each.data_ptr() for each in self._known]:
            self._known, self._alone, self._copies = buckets, [], True

    def given_away(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient that may be given away."""
        if not self.keep:
            return gradient
        return gradient.clone() if self._copies else gradient.detach()

    def put_back(self) -> None:
        """Give those who refer to the buckets the numbers that they had."""
        for bucket, numbers in self._held:
            bucket.copy_(numbers)
        self._held = []
