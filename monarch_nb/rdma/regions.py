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
        """Register memory."""
        slot, key = self.table.add()
        region = Region(memory, slot, key, shared)
        with self._lock:
            self._by_key[key] = region
        return region

    def find(self, key: int) -> Region | None:
        """Return the registration of that key, if it still holds."""
        return self._by_key.get(key)

    def remove(self, key: int) -> Region | None:
        """Take a registration out and clear its line, so that whoever looks from now on knows; None if
        there's none.

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
        """Say whether a handle of this process is still good."""
        return self.table.holds(handle.slot, handle.key)

    @property
    def num_bytes(self) -> int:
        """Bytes that are registered; what is registered twice counts twice."""
        return sum(r.memory.nbytes for r in list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)
