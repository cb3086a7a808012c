"""Gradients of a scaled loss (`torch.amp.GradScaler`): they are unscaled on the mesh, and whether one isn't
finite is noted in the plain tensor that the scaler has here.
"""

from __future__ import annotations

from typing import Any

import torch

UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


def unscale(gradients: list[Any], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """Multiply gradients of a mesh by a number; set `found_inf` to 1 if one of them isn't finite.

    Waits for the ranks: the scaler decides by that whether the optimiser takes its step.

    Args:
        gradients: tensors of one mesh, changed in place.
        found_inf, inv_scale: plain tensors of one element.
    """
    finite = torch.stack([torch.isfinite(each).all() for each in gradients]).all()
    torch._foreach_mul_(gradients, float(inv_scale))
    if not finite.item():
        found_inf.fill_(1.0)
