"""Tests with random values whether a layer computes each row of a batch separately: for layers that DTensor's
rules can't follow, such as LSTMs and attention that merges batch and sequence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

MAX_BYTES = 256 << 20
"""Layers with larger parameters aren't tested."""
NUM_TRIES = 2
aten = torch.ops.aten


class _NoChance(TorchDispatchMode):  # type: ignore[misc]
    """The mode in which dropout keeps all values, so that results don't depend on random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if func is aten.bernoulli_.float:
            return args[0].fill_(1.0)
        return func(*args, **(kwargs or {}))


@contextmanager
def as_in_training() -> Iterator[None]:
    """Have layers of attention do in a block what they do in training, for which there are rules; without
    gradients, torch would evaluate them by operations of their own.
    """
    attention = torch.backends.mha
    before = attention.get_fastpath_enabled()
    attention.set_fastpath_enabled(False)
    try:
        yield
    finally:
        attention.set_fastpath_enabled(before)


def split_dims(
    layer: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], num_parts: int
) -> list[int | None] | None:
    """Test whether a layer's outputs for parts of a batch are the parts of its output for the whole batch.

    Args:
        layer: the layer; a copy of it is called.
        args, kwargs: `(size, dtype, dim)` stands for a tensor that is split along `dim` (None: not split).

    Returns:
        for each output tensor the dimension along which the parts make up the whole, or None if it's the same
        for each part; None instead of the list if the layer mixes rows, or can't be called like that.
    """
    size = sum(p.numel() * p.element_size() for p in layer.parameters())
    if size > MAX_BYTES or any(p.is_meta for p in layer.parameters()):
        return None
    try:
        found = [_tried(layer, args, kwargs, num_parts, seed) for seed in range(NUM_TRIES)]
    except Exception:  # the layer can't be called with such values: no result
        return None
    return found[0] if all(each == found[0] for each in found) else None


def _tried(layer: nn.Module, args: Any, kwargs: Any, num_parts: int, seed: int) -> list[int | None] | None:
    generator = torch.Generator().manual_seed(seed)
    specs, structure = pytree.tree_flatten((tuple(args), dict(kwargs)), is_leaf=is_spec)
    whole = [_random(each, generator) if is_spec(each) else each for each in specs]
    of_whole = _called(layer, pytree.tree_unflatten(whole, structure))
    of_parts = []
    for n in range(num_parts):
        part = [_cut(x, s, n, num_parts) for x, s in zip(whole, specs, strict=True)]
        of_parts.append(_called(layer, pytree.tree_unflatten(part, structure)))
    dims = [_dim(w, list(parts)) for w, parts in zip(of_whole, zip(*of_parts, strict=True), strict=True)]
    return None if any(each == _DIFFERS for each in dims) else [None if d == _SAME else d for d in dims]


_SAME, _DIFFERS = -1, -2


def is_spec(value: Any) -> bool:
    """Return whether a value stands for a tensor."""
    return isinstance(value, tuple) and len(value) == 3 and isinstance(value[1], torch.dtype)


def _random(spec: Any, generator: torch.Generator) -> torch.Tensor:
    size, dtype, _ = spec
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(2, size, generator=generator).to(dtype)


def _cut(value: Any, spec: Any, number: int, num_parts: int) -> Any:
    if not is_spec(spec) or spec[2] is None:
        return value
    return value.chunk(num_parts, spec[2])[number].contiguous()


def _called(layer: nn.Module, arguments: Any) -> list[torch.Tensor]:
    args, kwargs = arguments
    fresh = copy.deepcopy(layer)
    with torch.no_grad(), _NoChance(), as_in_training():
        result = fresh(*args, **kwargs)
    return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def _dim(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> int:
    """Return the dimension along which the parts make up the whole."""
    if all(p.shape == whole.shape for p in parts):
        return _SAME if all(_alike(p, whole) for p in parts) else _DIFFERS
    dims = [
        d for d in range(whole.dim()) if parts[0].dim() == whole.dim() and parts[0].shape[d] != whole.shape[d]
    ]
    if len(dims) != 1:
        return _DIFFERS
    return dims[0] if _alike(torch.cat(list(parts), dims[0]), whole) else _DIFFERS


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.dtype.is_floating_point:
        return bool(torch.equal(one, other))
    tolerance = 1e-9 if one.dtype == torch.float64 else 1e-4
    is_alike = torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    return is_alike and not bool(other.isnan().all() and other.numel())  # a mask may leave nothing to look at
