"""Keeps the memory registrations of this process: their keys, and each path's registration of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from monarch_nb.rdma.handle import Handle, Shared
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.table import Table


@dataclass
class Region:
    """A registration of memory, which it keeps alive until it is dropped.

    Attributes:
        memory: the registered memory.
        slot, key: its line in the table.
        shared: where other processes can map it.
        made: objects that a path has made for it, by the path's name: memory regions, IPC handles.
        lock: held while a path makes such an object, and while the registration is dropped.
    """

    memory: Memory
    slot: int
    key: int
    shared: Shared | None
    made: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Regions:
    """All registrations of this process. Thread-safe."""

    def __init__(self) -> None:
        self.table = Table()
        self._by_key: dict[int, Region] = {}
        self._lock = threading.Lock()

    def add(self, memory: Memory, shared: Shared | None) -> Region:
        """Register memory, and return its region."""
        slot, key = self.table.add()
        region = Region(memory, slot, key, shared)
        with self._lock:
            self._by_key[key] = region
        return region

    def find(self, key: int) -> Region | None:
        """Return the region with this key; None if there is none."""
        return self._by_key.get(key)

    def remove(self, key: int) -> Region | None:
        """Remove a registration and clear its line in the table, so that later lookups fail. Return None if
        there is no such registration.

        When this returns, no process of this machine writes to the memory any more.
        """
        with self._lock:
            region = self._by_key.pop(key, None)
            if region is None:
                return None
            self.table.clear(region.slot)
        self.table.wait_for_writers(region.slot)
        self.table.free(region.slot)
        return region

    def holds(self, handle: Handle) -> bool:
        """Return whether a handle of this process is still valid."""
        return self.table.holds(handle.slot, handle.key)

    @property
    def num_bytes(self) -> int:
        """The number of registered bytes; memory that is registered twice counts twice."""
        return sum(r.memory.nbytes for r in list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)
