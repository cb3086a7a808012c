"""The largest and the smallest number over ranks, where some aren't numbers: NaN, as on one process.

A collective compares, and a comparison with NaN is false: whether NaN is in the result depends on which rank
has it. So `x.max()` and `clip_grad_norm_(..., norm_type=inf)` wouldn't show that a gradient has become NaN.
Here where NaNs are goes along in the same message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from monarch_nb._rank.tensor.private import replace_reductions

_LEAST = {"max": -math.inf, "min": math.inf}
Reduction = Callable[[Any, torch.Tensor, Any, int], torch.Tensor]


def keep_nans() -> None:
    """Have DTensors on this process keep NaN in the maximum and the minimum over ranks."""
    replace_reductions(_keeping_nans, lambda layout: layout.reduce_op in _LEAST)


def _keeping_nans(by_torch: Reduction) -> Reduction:
    """Return the reduction of summands over an axis of a mesh: (layout, this rank's, mesh, axis)."""

    def reduced(layout: Any, part: torch.Tensor, mesh: Any, axis: int) -> torch.Tensor:
        if not part.is_floating_point():
            return by_torch(layout, part, mesh, axis)
        is_nan, least = part.isnan(), _LEAST[layout.reduce_op]
        flags = is_nan.to(part.dtype)
        both = torch.stack([part.masked_fill(is_nan, least), flags if least < 0 else -flags])
        found, flagged = by_torch(layout, both, mesh, axis).unbind()
        return found.masked_fill(flagged != 0, math.nan)

    return reduced
