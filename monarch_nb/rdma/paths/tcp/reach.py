"""Accesses the bytes of a request at the owner: in place, gathered by a copy, or through pinned memory for a
GPU's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from monarch_nb.rdma import staging
from monarch_nb.rdma.layout import Layout
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.paths.tcp.wire import Request, gathered, scatter


class Reach:
    """The access of one stream to the bytes that requests name. Used by the stream's thread."""

    def __init__(self) -> None:
        self._pinned: Any = None

    def read(self, memory: Memory, request: Request) -> memoryview:
        """Return the bytes that a request asks for.

        Raises:
            RuntimeError: if a GPU operation fails.
        """
        if not memory.is_cpu:
            data = self._pinned_bytes(request.nbytes)
            for start, at, n in _places(request):
                self._pinned[start : start + n].copy_(_flat(memory)[at : at + n])
            return data
        if request.is_copied:
            return gathered(_all_of(memory), request.stretches)
        return memory.bytes_at(*request.stretches[0])

    def place(self, memory: Memory, request: Request) -> memoryview:
        """Return the memory to receive a write's bytes into; call `put` afterwards.

        Raises:
            RuntimeError: if a GPU operation fails.
        """
        if not memory.is_cpu:
            return self._pinned_bytes(request.nbytes)
        if request.is_copied:
            return memoryview(bytearray(request.nbytes))
        return memory.bytes_at(*request.stretches[0])

    def put(self, memory: Memory, request: Request, data: memoryview) -> None:
        """Copy `data`, received into `place`'s memory, to its destination, unless that memory is the
        destination.

        Raises:
            RuntimeError: if a GPU operation fails.
        """
        if not memory.is_cpu:
            import torch

            for start, at, n in _places(request):
                _flat(memory)[at : at + n].copy_(self._pinned[start : start + n])
            torch.cuda.current_stream(memory.device).synchronize()
        elif request.is_copied:
            scatter(data, _all_of(memory), request.stretches)

    def _pinned_bytes(self, nbytes: int) -> memoryview:
        if self._pinned is None or len(self._pinned) < nbytes:
            import torch

            self._pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return memoryview(self._pinned.numpy())[:nbytes]


def _places(request: Request) -> list[tuple[int, int, int]]:
    """Return for each stretch its offset in the request's bytes, its offset in the region, and its length."""
    found, start = [], 0
    for at, n in request.stretches:
        found.append((start, at, n))
        start += n
    return found


def _all_of(memory: Memory) -> memoryview:
    return memory.bytes_at(0, memory.span_bytes)


def _flat(memory: Memory) -> Any:
    """Return the whole region of GPU memory as a one-dimensional tensor of bytes."""
    return staging.device_bytes(replace(memory, layout=Layout.contiguous((memory.span_bytes,), 1))).view(-1)
