"""Local memory that stays registered from one transfer to the next.

A registration holds pages, not addresses: memory that was freed and allocated again at the same address would
be missed by the NIC. So one is kept only where we'd know: memory of `rdma.empty`, arrays that numpy allocated
(while we have a weak reference, it refuses to move them), tensors whose storage can't be resized, and GPU
memory (whose driver numbers allocations). Any other is registered for one transfer.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from monarch_nb.rdma import segments
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.paths.verbs import gpu as verbs_gpu
from monarch_nb.rdma.paths.verbs.errors import VerbsError
from monarch_nb.rdma.paths.verbs.nic import Nic, Registration

MAX_KEPT = 512
MAX_KEPT_PART = 0.25
"""Share of the machine's memory."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The identity of the allocation that memory belongs to.

    Attributes:
        token: equal for memory of the same allocation, while `holds` is true.
        holds: whether it hasn't been freed.
    """

    token: Hashable
    holds: Callable[[], bool] = field(compare=False, default=lambda: True)


def anchor_of(memory: Memory) -> Anchor | None:
    """Return an anchor that shows whether memory is still the same allocation; None if there is none."""
    if not memory.is_cpu:
        return _gpu_anchor(memory.address)
    shared = segments.find(memory)
    if shared is not None:
        return _segment_anchor(replace(memory, keepalive=None), shared.inode)
    if memory.kind == "tensor":
        return _storage_anchor(memory.keepalive)
    return _array_anchor(memory.keepalive) if memory.kind == "array" else None


def _gpu_anchor(address: int) -> Anchor | None:
    number = verbs_gpu.allocation_id(address)
    return (
        None
        if number is None
        else Anchor(("gpu", number), lambda: verbs_gpu.allocation_id(address) == number)
    )


def _segment_anchor(place: Memory, inode: int) -> Anchor:
    def holds() -> bool:
        found = segments.find(place)
        return found is not None and found.inode == inode

    return Anchor(("segment", inode), holds)


def _array_anchor(array: Any) -> Anchor | None:
    numpy = sys.modules["numpy"]
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    if array.base is not None or not array.flags.owndata:
        return None
    reference = weakref.ref(array)
    return Anchor(("array", id(array)), lambda: reference() is not None)


def _storage_anchor(tensor: Any) -> Anchor | None:
    storage = tensor.untyped_storage()
    if storage.resizable():
        return None
    from torch.multiprocessing.reductions import StorageWeakRef

    reference = StorageWeakRef(storage)  # keeps the id from being reused
    return Anchor(("storage", storage._cdata, storage.data_ptr()), lambda: not reference.expired())


@dataclass(eq=False)
class _Kept:
    address: int
    nbytes: int
    writable: bool
    anchor: Anchor
    registration: Registration
    num_users: int = 0

    def covers(self, memory: Memory, anchor: Anchor) -> bool:
        inside = (
            self.address <= memory.address
            and memory.address + memory.span_bytes <= self.address + self.nbytes
        )
        return (
            inside and self.anchor == anchor and (self.writable or memory.read_only) and self.anchor.holds()
        )


class LocalMemories:
    """The memory of this process that one NIC has registered for its own transfers. Thread-safe."""

    def __init__(self, nic: Nic, max_kept: int = MAX_KEPT) -> None:
        self._nic = nic
        self._kept: list[_Kept] = []
        self._lock = threading.RLock()
        self._max_kept = max_kept
        self._max_bytes = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") * MAX_KEPT_PART)
        self.num_registered = 0
        """Number of registrations made; reuses don't count."""

    @contextmanager
    def registered(self, memory: Memory) -> Iterator[Registration]:
        """Yield the registration of memory: an existing one, or a new one.

        Raises:
            VerbsError: if that fails; it names the limit that was exceeded.
        """
        anchor = anchor_of(memory)
        if anchor is None:
            registration = self._register(memory)
            try:
                yield registration
            finally:
                registration.close()
            return
        kept = self._take_registration(memory, anchor)
        try:
            yield kept.registration
        finally:
            with self._lock:
                kept.num_users -= 1
                self._sweep()

    def _take_registration(self, memory: Memory, anchor: Anchor) -> _Kept:
        with self._lock:
            found = next((k for k in self._kept if k.covers(memory, anchor)), None)
            if found is None:
                found = _Kept(
                    memory.address, memory.span_bytes, not memory.read_only, anchor, self._register(memory)
                )
            else:
                self._kept.remove(found)
            self._kept.append(found)  # the most recently used is last
            found.num_users += 1
            self._sweep()
            return found

    def _register(self, memory: Memory) -> Registration:
        self.num_registered += 1
        try:
            return self._nic.register(memory, remote=False)
        except VerbsError:
            if not self._let_go(lambda k: True):
                raise
            return self._nic.register(memory, remote=False)

    def _sweep(self) -> None:
        """Release registrations of freed memory, and the least recently used ones above the limits."""
        self._let_go(lambda k: not k.anchor.holds())
        total = sum(k.nbytes for k in self._kept)
        for kept in list(self._kept):
            if total <= self._max_bytes and len(self._kept) <= self._max_kept:
                return
            if self._let_go(lambda k, wanted=kept: k is wanted):  # type: ignore[misc]
                total -= kept.nbytes

    def _let_go(self, which: Callable[[_Kept], bool]) -> int:
        with self._lock:
            gone = [k for k in self._kept if not k.num_users and which(k)]
            self._kept = [k for k in self._kept if not any(k is g for g in gone)]
        for kept in gone:
            kept.registration.close()
        return len(gone)

    def __len__(self) -> int:
        return len(self._kept)
