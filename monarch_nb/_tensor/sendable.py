"""Plain tensors that can be sent to ranks: those that have numbers."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from monarch_nb.exceptions import WrongTensor

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of tensors of torch's own."""


def sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as ranks get it: without a class of the user's, which they may not have.

    Raises:
        WrongTensor: for one without numbers, or whose numbers don't lie in one piece of memory.
    """
    kind = _kind(tensor)
    if kind:
        raise WrongTensor(f"a mesh takes dense tensors that have numbers, not a {kind} one")
    return tensor if type(tensor) in PLAIN else tensor.as_subclass(torch.Tensor)


def _kind(tensor: torch.Tensor) -> str:
    """Return what a tensor is that can't be sent; "" for others."""
    if tensor.is_meta:
        return "meta"
    if tensor.layout != torch.strided or tensor.is_quantized:
        is_sparse = "sparse" in str(tensor.layout)
        return "quantized" if tensor.is_quantized else "sparse" if is_sparse else "nested"
    if type(tensor) in PLAIN:
        return ""
    without = issubclass(type(tensor), FakeTensor) or is_traceable_wrapper_subclass(tensor)
    return type(tensor).__name__ if without else ""
