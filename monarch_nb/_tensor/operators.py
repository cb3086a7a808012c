"""Arithmetic operators of tensors of a mesh that need no gradient, and the methods of the same operations.

Torch's way from `x + y` to `__torch_dispatch__` takes as long as all that's done there. Where nothing but the
tensors' own code would see the operation, and its plan is known, an operator adds the command at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monarch_nb._rank.tensor.private import has_modes, is_autocast

_keeps_gradients = torch.is_grad_enabled


def binary(name: str, func: Any) -> Callable[..., Any]:
    """Return the method of a binary operator.

    Args:
        name: the operator's method, as in `__add__`, or `add`.
        func: the operation that torch makes of it, for tensors and for numbers.
    """
    plain = getattr(torch.Tensor, name)
    number, is_matmul = id(func), func is torch.ops.aten.mm.default

    def operate(self: Any, other: Any, *more: Any, **named: Any) -> Any:
        if more or named:
            return plain(self, other, *more, **named)
        kind = type(other)
        key: tuple[Any, ...]
        tensors: tuple[Any, ...] = (self,)
        scalars: tuple[float, ...] = ()
        if kind is type(self):
            key, tensors = (number, self.mesh_meta, other.mesh_meta), (self, other)
        elif kind is float:
            key, scalars = (number, self.mesh_meta, float), (other,)
        elif kind is int:
            key = number, self.mesh_meta, other, int
        else:
            return plain(self, other)
        engine = self.mesh_meta.grid.engine
        plan = engine.plans.get(key)
        if plan is None or has_modes() or (is_matmul and is_autocast()):
            return plain(self, other)
        if _keeps_gradients() and (self.requires_grad or tensors[-1].requires_grad):
            return plain(self, other)
        return engine.command(plan, tensors, scalars)

    operate.__name__ = operate.__qualname__ = name
    operate.__doc__ = f"As `torch.Tensor.{name}`."
    return operate
