"""A fast encoding of small tensors and arrays among basic types (`plain`): their bytes, 8 us instead of 70.

Only what is exactly a `torch.Tensor` or a `numpy.ndarray`, in one piece, all of its memory, and nothing else
besides values: so there's nothing that the general way (`codec`) would keep and this one would lose. What
shares its memory with another one of the message goes the general way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from monarch_nb._wire.loaded import loaded

MAX_BYTES: Final = 1 << 16
"""Size above which copying dominates the cost."""
_TENSOR_TYPES: Final = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_ARRAY_KINDS: Final = frozenset("biuf")

_dtypes: dict[Any, str] = {}
"""torch's types with this encoding, and their names."""
_by_name: dict[str, Any] = {}
_from_buffer: Any = None
_checks: dict[type, Callable[[Any], int]] = {}
"""By type: a function that returns the address of a value's memory; 0 if this encoding doesn't apply."""
_reducers: dict[type, Callable[[Any], Any]] = {}
"""By type: how a value of that type is pickled, if it has an address."""


def address_of(value: Any) -> int:
    """Return where the memory of a small tensor or array begins; 0 for whatever doesn't go this way."""
    kind = type(value)
    check = _checks.get(kind)
    if check is None:
        if kind.__name__ not in ("Tensor", "ndarray") or not _learn(kind):
            return 0
        check = _checks[kind]
    try:
        return check(value)
    except Exception:  # a tensor without memory of its own: the general encoding raises the error
        return 0


def reduced(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return how to pickle a small tensor or array that has an address."""
    return _reducers[type(value)](value)  # type: ignore[no-any-return]


def _learn(kind: type) -> bool:
    """Take note of a library's type, now that the library is there."""
    torch, numpy = loaded("torch"), loaded("numpy")
    if torch is not None and kind is torch.Tensor:
        _learn_dtypes(torch)
        _checks[kind], _reducers[kind] = _tensor_address, _reduce_tensor
    elif numpy is not None and kind is numpy.ndarray:
        _checks[kind], _reducers[kind] = _array_address, _reduce_array
    return kind in _checks


def _learn_dtypes(torch: Any) -> None:
    global _from_buffer
    _from_buffer = torch.frombuffer
    for name in _TENSOR_TYPES:
        _dtypes[getattr(torch, name)] = name
        _by_name[name] = getattr(torch, name)


# --- torch


def _tensor_address(tensor: Any) -> int:
    num_bytes = tensor.nbytes
    if (
        not 0 < num_bytes <= MAX_BYTES
        or tensor.requires_grad
        or tensor.dtype not in _dtypes
        or not tensor.is_cpu
        or tensor.is_nested
        or tensor.__dict__
        or not tensor.is_contiguous()
        or tensor.is_neg()
        or tensor.untyped_storage().nbytes() != num_bytes
    ):
        return 0
    return int(tensor.data_ptr())


def _reduce_tensor(tensor: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return tensor_of, (
        _dtypes[tensor.dtype],
        tuple(tensor.shape),
        ctypes.string_at(tensor.data_ptr(), tensor.nbytes),
    )


def tensor_of(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    """Return a tensor with these bytes."""
    if not _by_name:
        import torch

        _learn_dtypes(torch)
    tensor = _from_buffer(bytearray(data), dtype=_by_name[dtype])
    return tensor if len(shape) == 1 else tensor.view(shape)


# --- numpy


def _array_address(array: Any) -> int:
    if (
        not 0 < array.nbytes <= MAX_BYTES
        or array.dtype.kind not in _ARRAY_KINDS
        or not array.dtype.isnative
        or array.dtype.metadata is not None
        or not array.flags.c_contiguous
        or not array.flags.writeable
    ):
        return 0
    return id(array)  # arrays that share memory don't share it on the other side, in either encoding


def _reduce_array(array: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return array_of, (array.dtype.str, array.shape, array.tobytes())


def array_of(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    """Return an array with these bytes."""
    import numpy

    return numpy.ndarray(shape, dtype, bytearray(data))
