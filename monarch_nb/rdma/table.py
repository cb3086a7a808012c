"""Which registrations hold: a table in shared memory that the owner writes and everybody on its machine may read.

So a reader on the same machine needs no word of the owner to learn that a buffer was dropped, and a NIC can read the line, too. A line
is one 64-bit key; 0: free. The owner clears the line *before* it lets the memory go, and readers look again after the last byte: if the line
is unchanged, the memory was there all the time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading

NUM_SLOTS = 1 << 17
KEY_BYTES = 8


class TableFull(RuntimeError):
    """More registrations than the table has lines."""


class Table:
    """This process' table. Lines that were never used cost no memory."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("monarch_nb-keys", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, NUM_SLOTS * KEY_BYTES)
        self._map = mmap.mmap(self.fd, NUM_SLOTS * KEY_BYTES)
        self._keys = (ctypes.c_uint64 * NUM_SLOTS).from_buffer(self._map)
        self.inode = os.fstat(self.fd).st_ino
        self.address = ctypes.addressof(self._keys)
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._num_used = 0

    def add(self) -> tuple[int, int]:
        """Return a line and the new key in it."""
        with self._lock:
            if self._free:
                slot = self._free.pop(0) if len(self._free) > 64 else self._free.pop()
            elif self._num_used < NUM_SLOTS:
                slot = self._num_used
                self._num_used += 1
            else:
                raise TableFull(f"{NUM_SLOTS} buffers are registered in this process: drop() those that are done with")
            key = secrets.randbits(63) | 1
            self._keys[slot] = key
            return slot, key

    def remove(self, slot: int) -> None:
        """Clear a line: whoever looks from now on knows."""
        with self._lock:
            self._keys[slot] = 0
            self._free.append(slot)

    def holds(self, slot: int, key: int) -> bool:
        """Say whether a line still has that key."""
        return self._keys[slot] == key


class TableView:
    """Another process' table, read-only.

    Raises:
        FileNotFoundError: if the process is gone, or another one by now.
        PermissionError: if the system doesn't let us look.
    """

    def __init__(self, pid: int, fd: int, inode: int) -> None:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(own).st_ino != inode:
                raise FileNotFoundError(f"process {pid} has another table")
            self._map = mmap.mmap(own, NUM_SLOTS * KEY_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(own)
        self._keys = memoryview(self._map).cast("Q")

    def holds(self, slot: int, key: int) -> bool:
        """Say whether a line still has that key."""
        return bool(self._keys[slot] == key)
