"""Memory that other processes can map: `empty` allocates it, and a reader of a buffer of it needs no copy."""

from __future__ import annotations

import bisect
import ctypes
import math
import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from monarch_nb._wire.segment import SharedMemoryError, reserve
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma.handle import Shared
from monarch_nb.rdma.memory import Memory

HUGE_BYTES = 2 << 20
_MADV_POPULATE_WRITE = 23


class Segment(mmap.mmap):
    """A mapped memfd of this process, found by its address until the last array in it is gone."""

    fd: int
    address: int

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _forget(self.address)
            with suppress(OSError):
                os.close(self.fd)


_by_address: dict[int, tuple[int, int, int]] = {}
"""By start address: length, descriptor, inode."""
_starts: list[int] = []
_lock = threading.RLock()  # __del__ may run at any time, in the same thread


def allocate(nbytes: int) -> Segment:
    """Return `nbytes` bytes of zeroed shared memory, which are freed with the last array in them."""
    fd = os.memfd_create("monarch_nb-buffer", os.MFD_CLOEXEC)
    try:
        reserve(fd, max(nbytes, 1))
        segment = Segment(fd, max(nbytes, 1))
    except (OSError, ValueError) as error:
        os.close(fd)
        raise SharedMemoryError.of(nbytes, error) from None
    if nbytes >= HUGE_BYTES:
        with suppress(OSError):
            segment.madvise(mmap.MADV_HUGEPAGE)
    segment.fd = fd
    segment.address = ctypes.addressof(ctypes.c_char.from_buffer(segment))
    with _lock:
        _by_address[segment.address] = (max(nbytes, 1), fd, os.fstat(fd).st_ino)
        bisect.insort(_starts, segment.address)
    return segment


def _forget(address: int) -> None:
    with _lock:
        if _by_address.pop(address, None) is not None:
            _starts.remove(address)


def find(memory: Memory) -> Shared | None:
    """Return the location at which others can map `memory`; None if it wasn't allocated by `empty`."""
    with _lock:
        at = bisect.bisect_right(_starts, memory.address) - 1
        if at < 0 or not memory.is_cpu:
            return None
        start = _starts[at]
        length, fd, inode = _by_address[start]
        if memory.address + memory.span_bytes > start + length:
            return None
        return Shared(fd, inode, memory.address - start)


def empty(
    *size: int | Sequence[int],
    dtype: Any = None,
    kind: Literal["tensor", "array"] | None = None,
    populate: bool = False,
) -> Any:
    """Return a zeroed tensor (or array) in memory that other ranks of this machine can map.

    A buffer of it is read without a copy (`RDMABuffer.map`), and copied at the speed of memory.

    Args:
        size: the shape, given as to `torch.empty`.
        dtype: a torch dtype, or a dtype of numpy (`"float32"`); by default torch's default dtype.
        kind: `tensor` or `array`; by default the one that `dtype` belongs to.
        populate: touch all pages now, so that the first write is as fast as the next.

    Raises:
        MeshUsageError: if the shape or dtype is invalid.
        MemoryError: if not enough memory is left.

    Example:
        >>> weights = empty(1024, 1024, dtype="float32")
        >>> weights.shape, str(weights.dtype)
        ((1024, 1024), 'float32')
    """
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise MeshUsageError(f"empty{shape}: a shape is made of whole numbers that aren't negative")
    as_tensor = _is_tensor(dtype, kind)
    itemsize = _itemsize(dtype, as_tensor)
    segment = allocate(math.prod(shape) * itemsize)  # type: ignore[arg-type]
    if populate:
        with suppress(OSError):
            segment.madvise(_MADV_POPULATE_WRITE)
    return view(segment, shape, dtype, as_tensor)  # type: ignore[arg-type]


def _is_tensor(dtype: Any, kind: str | None) -> bool:
    if kind not in (None, "tensor", "array"):
        raise MeshUsageError(f"kind={kind!r}: an array is a 'tensor' or an 'array'")
    if kind is not None:
        return kind == "tensor"
    return dtype is None or type(dtype).__module__ == "torch"


def _itemsize(dtype: Any, as_tensor: bool) -> int:
    if as_tensor:
        import torch

        found = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(found, torch.dtype):
            raise MeshUsageError(f"dtype={dtype!r}: a tensor needs a torch.dtype, such as torch.float32")
        return int(found.itemsize)
    import numpy

    try:
        return numpy.dtype(dtype or "float32").itemsize
    except TypeError:
        raise MeshUsageError(f"dtype={dtype!r} is no dtype: try 'float32' or torch.float32") from None


def view(buffer: Any, shape: Sequence[int], dtype: Any, as_tensor: bool, offset: int = 0) -> Any:
    """Return an array of `shape` over the bytes of `buffer`."""
    count = math.prod(shape)
    if as_tensor:
        import torch

        wanted = dtype or torch.get_default_dtype()
        if not count:
            return torch.empty(tuple(shape), dtype=wanted)
        return torch.frombuffer(buffer, dtype=wanted, count=count, offset=offset).view(tuple(shape))
    import numpy

    return numpy.ndarray(tuple(shape), dtype or "float32", buffer, offset)
