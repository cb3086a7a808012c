"""Extracts big arrays from a value, and restores them: the value travels in a message, the arrays as
buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_nb._wire.loaded import loaded
from monarch_nb._wire.segment import MIN_OF_MANY_BYTES
from monarch_nb.rdma.buffer import RDMABuffer
from monarch_nb.rdma.segments import empty


class Placeholder:
    """A placeholder for an extracted array; `index` is its number in the list."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return Placeholder, (self.index,)


def extract(value: Any) -> tuple[Any, list[Any]]:
    """Return `value` with placeholders for the arrays of 1 MiB and more in its dicts, lists and tuples,
    and those arrays.
    """
    arrays: list[Any] = []

    def extract_leaf(leaf: Any) -> Any:
        if not _is_big(leaf):
            return leaf
        arrays.append(leaf)
        return Placeholder(len(arrays) - 1)

    return _map(value, extract_leaf), arrays


def restore(value: Any, arrays: list[Any]) -> Any:
    """Return `value` with the arrays in place of their placeholders."""
    return _map(value, lambda leaf: arrays[leaf.index] if isinstance(leaf, Placeholder) else leaf)


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is dict:
        return {k: _map(v, function) for k, v in value.items()}
    if kind is list or kind is tuple:
        return kind(_map(v, function) for v in value)
    return function(value)


def _is_big(leaf: Any) -> bool:
    torch = loaded("torch")
    if torch is not None and type(leaf) is torch.Tensor:
        plain = (
            leaf.layout is torch.strided
            and not leaf.is_quantized
            and not leaf.is_conj()
            and not leaf.is_neg()
        )
        return bool(
            plain and not leaf.requires_grad and leaf.numel() * leaf.element_size() >= MIN_OF_MANY_BYTES
        )
    numpy = loaded("numpy")
    return (
        numpy is not None
        and type(leaf) is numpy.ndarray
        and not leaf.dtype.hasobject
        and leaf.nbytes >= MIN_OF_MANY_BYTES
    )


def snapshot(array: Any) -> RDMABuffer:
    """Return a buffer of a copy of `array`, which others of this machine can map."""
    if hasattr(array, "detach"):
        copy = empty(tuple(array.shape), dtype=array.dtype)
        copy.copy_(array.detach())
    else:
        copy = empty(array.shape, dtype=array.dtype, kind="array")
        copy[...] = array
    return RDMABuffer(copy)
