"""Describes local memory of any kind (a tensor, an array, anything with the buffer protocol): its address,
its layout, and whether it may be written.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

from monarch_nb._wire.loaded import loaded
from monarch_nb._wire.segment import address_of
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma.handle import MemoryKind
from monarch_nb.rdma.layout import Layout

Local = Any
"""A torch.Tensor, a numpy.ndarray, or an object with the buffer protocol (bytes, bytearray, memoryview,
mmap).
"""


@dataclass(frozen=True, slots=True)
class Memory:
    """A stretch of this process' memory and the elements in it.

    Attributes:
        address: of the first byte that any element has.
        span_bytes: from there to the end of the last one.
        layout: where the elements lie, from `address`.
        dtype, kind, device, gpu, read_only: as in `Handle`.
                keepalive: an object that keeps the memory alive.
    """

    address: int
    span_bytes: int
    layout: Layout
    dtype: str
    kind: MemoryKind
    device: str
    gpu: str
    read_only: bool
    keepalive: Any

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self.layout.nbytes

    @property
    def is_cpu(self) -> bool:
        """Whether the memory is on the host, where a CPU can address it."""
        return self.device == "cpu"

    def bytes_at(self, offset: int, nbytes: int) -> memoryview:
        """Return `nbytes` bytes from `address + offset` on, to be read or written in place. Host memory
        only.
        """
        array = (ctypes.c_ubyte * nbytes).from_address(self.address + offset)
        array.keepalive = self.keepalive  # type: ignore[attr-defined]
        return memoryview(array).cast("B")

    def at(self, layout: Layout) -> Memory:
        """Return the same memory with another layout."""
        return replace(self, layout=layout)

    def part(self, index: Any) -> Memory:
        """Return a part of the memory, indexed like an array."""
        return self.at(self.layout[index])


def memory_of(local: Local, what: str = "memory") -> Memory:
    """Return a description of the memory of `local`, without copying it.

    Args:
        local: a tensor, an array, or an object with the buffer protocol.
        what: its name in an error.

    Raises:
        MeshUsageError: if its memory can't be accessed in place.
    """
    if isinstance(local, Memory):
        return local
    torch = loaded("torch")
    if torch is not None and isinstance(local, torch.Tensor):
        return _of_tensor(torch, local, what)
    if type(local).__module__ == "numpy" and hasattr(local, "__array_interface__"):
        return _of_array(local, what)
    return _of_buffer(local, what)


def _of_tensor(torch: Any, tensor: Any, what: str) -> Memory:
    if hasattr(tensor, "_local_tensor"):
        raise MeshUsageError(
            f"{what} is a DTensor: give its local part, {what}.to_local(); or publish() the whole model"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise MeshUsageError(
            f"{what} is a {tensor.layout} tensor; only dense tensors lie in one piece of memory"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise MeshUsageError(
            f"{what} is a lazy conjugate or negative: {what}.resolve_conj().resolve_neg() first"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise MeshUsageError(f"{what} is on {tensor.device}; a buffer is on cpu or cuda")
    plain = tensor.detach()
    size = plain.element_size()
    strides = tuple(s * size for s in plain.stride())
    device = "cpu" if plain.device.type == "cpu" else f"cuda:{plain.device.index}"
    gpu = "" if device == "cpu" else str(torch.cuda.get_device_properties(plain.device).uuid)
    layout = Layout(tuple(plain.shape), strides, size)
    return _placed(plain.data_ptr(), layout, dtype_name(plain), "tensor", device, gpu, False, plain)


def dtype_name(tensor: Any) -> str:
    """Return a tensor's element type by the name that torch and numpy share, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _of_array(array: Any, what: str) -> Memory:
    if array.dtype.hasobject:
        raise MeshUsageError(
            f"{what} is an array of Python objects; its memory holds pointers of this process"
        )
    address, read_only = array.__array_interface__["data"]
    layout = Layout(tuple(array.shape), tuple(array.strides), array.itemsize)
    return _placed(address, layout, array.dtype.name, "array", "cpu", "", read_only, array)


def _of_buffer(local: Any, what: str) -> Memory:
    try:
        view = memoryview(local)
    except TypeError:
        raise MeshUsageError(
            f"{what} is a {type(local).__name__}; a buffer is made of a torch.Tensor, a numpy.ndarray "
            "or a memoryview"
        ) from None
    if view.ndim and view.suboffsets:
        raise MeshUsageError(f"{what} is a memoryview with pointers in it; copy it: bytearray({what})")
    if not view.c_contiguous:
        import numpy

        return replace(_of_array(numpy.asarray(view), what), kind="bytes")
    layout = Layout.contiguous(view.shape or (), view.itemsize)
    dtype = "uint8" if view.format in ("B", "b", "c") else view.format
    return _placed(
        address_of(view) if view.nbytes else 0, layout, dtype, "bytes", "cpu", "", view.readonly, view
    )


def _placed(
    first: int,
    layout: Layout,
    dtype: str,
    kind: MemoryKind,
    device: str,
    gpu: str,
    read_only: bool,
    keepalive: Any,
) -> Memory:  # fmt: skip
    low, high = layout.span
    return Memory(first + low, high - low, layout.moved(-low), dtype, kind, device, gpu, read_only, keepalive)
