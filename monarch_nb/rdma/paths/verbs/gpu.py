"""GPU memory that a NIC accesses directly: through the module nvidia-peermem, or by a dma-buf of the CUDA
driver.

The driver is asked through ctypes and only in processes that use CUDA already. A dma-buf is addressed from
its own beginning, so what the NIC calls an address differs from what the GPU does (`shift`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monarch_nb._wire.loaded import loaded
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.paths.verbs.errors import VerbsError

MODULES = (Path("/sys/module/nvidia_peermem"), Path("/sys/module/nv_peer_mem"))
_DMA_BUF_SUPPORTED = 124
_BUFFER_ID = 7
_SYNC_MEMOPS = 6
_DMA_BUF_FD = 1
_FLUSH_CURRENT, _FLUSH_TO_OWNER = 0, 100


def has_peermem() -> bool:
    """Return whether the kernel has the module that lets NICs register GPU addresses."""
    return any(m.exists() for m in MODULES)


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _cuda_in_use() -> bool:
    torch = loaded("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()


def _gpu_makes_dma_bufs(index: int) -> bool:
    driver, device, value = _driver(), ctypes.c_int(), ctypes.c_int()
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), index):
        return False
    return (
        driver.cuDeviceGetAttribute(ctypes.byref(value), _DMA_BUF_SUPPORTED, device) == 0 and value.value == 1
    )


@functools.cache
def _all_make_dma_bufs() -> bool:
    torch = sys.modules["torch"]
    return all(_gpu_makes_dma_bufs(i) for i in range(torch.cuda.device_count()))


def why_not() -> str:
    """Return why NICs can't access this process' GPU memory; empty if they can."""
    if has_peermem():
        return ""
    if not _cuda_in_use():
        return "no CUDA in use, and the module nvidia-peermem is not loaded"
    if not _all_make_dma_bufs():
        return "the GPU's memory can't be registered: modprobe nvidia-peermem (this driver makes no dma-bufs)"
    return ""


def register(library: Any, domain: Any, memory: Memory, access: int) -> tuple[Any, int]:
    """Register GPU memory; return the region, and the offset between its addresses and the NIC's.

    Raises:
        VerbsError: if that's impossible; it names what is missing.
    """
    why = why_not()
    if why:
        raise VerbsError(why)
    import torch

    with torch.cuda.device(memory.device):
        torch.cuda.current_stream().synchronize()  # now this thread has the GPU's context
        _make_synchronous(memory.address)
        if has_peermem():
            return library.MR(domain, memory.span_bytes, access, address=memory.address), 0
        if library.DmaBufMR is None:
            raise VerbsError(
                "this pyverbs lacks dma-bufs: modprobe nvidia-peermem, or install pyverbs 38 or later"
            )
        with _dma_buf(memory.address, memory.span_bytes) as (descriptor, offset):
            # pyverbs uses the offset also as the address.
            return library.DmaBufMR(
                domain, memory.span_bytes, access, descriptor, offset
            ), offset - memory.address


@contextmanager
def _dma_buf(address: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield a dma-buf's descriptor for the pages around a range of GPU memory, and the range's offset in it.
    A registration outlives the descriptor.
    """
    base, length = _allocation(address)
    page = os.sysconf("SC_PAGESIZE")
    first = max(base, address // page * page)
    end = min(base + length, -(-(address + nbytes) // page) * page)
    descriptor = ctypes.c_int(-1)
    failed = _driver().cuMemGetHandleForAddressRange(
        ctypes.byref(descriptor),
        ctypes.c_uint64(first),
        ctypes.c_size_t(end - first),
        _DMA_BUF_FD,
        ctypes.c_uint64(0),
    )
    if failed:
        raise VerbsError(
            f"the CUDA driver makes no dma-buf of this memory (error {failed}): modprobe nvidia-peermem"
        )
    try:
        yield descriptor.value, address - first
    finally:
        os.close(descriptor.value)


def _allocation(address: int) -> tuple[int, int]:
    base, length = ctypes.c_uint64(), ctypes.c_size_t()
    failed = _driver().cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(length), ctypes.c_uint64(address)
    )
    if failed:
        raise VerbsError(f"the CUDA driver doesn't know this memory (error {failed})")
    return base.value, length.value


def _make_synchronous(address: int) -> None:
    """Set copies within this allocation to complete before they return, as GPUDirect requires. If the driver
    refuses, copies are waited for anyway.
    """
    value = ctypes.c_uint(1)
    if _driver() is not None:
        _driver().cuPointerSetAttribute(ctypes.byref(value), _SYNC_MEMOPS, ctypes.c_uint64(address))


def allocation_id(address: int) -> int | None:
    """Return the id of the allocation that holds an address, which is unique in a process; None if the driver
    doesn't provide one.
    """
    value = ctypes.c_uint64()
    if _driver() is None or _driver().cuPointerGetAttribute(
        ctypes.byref(value), _BUFFER_ID, ctypes.c_uint64(address)
    ):
        return None
    return value.value


def settle(memory: Memory) -> None:
    """Wait until earlier GPU operations have written their results to memory: a NIC doesn't respect
    streams.
    """
    import torch

    torch.cuda.synchronize(memory.device)


def flush(memory: Memory) -> None:
    """Make data that a NIC has written visible to kernels that start from now on. GPUs that guarantee this
    order refuse the call, which is fine.
    """
    import torch

    with torch.cuda.device(memory.device):
        _driver().cuFlushGPUDirectRDMAWrites(_FLUSH_CURRENT, _FLUSH_TO_OWNER)
