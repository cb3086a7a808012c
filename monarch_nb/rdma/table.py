"""A table of valid registrations, in shared memory that the owner writes and every process on its machine may
read.

So a reader on the same machine needs no word of the owner to learn that a buffer was dropped, and a NIC can
read the line, too. A line is one 64-bit key; 0: free. The owner clears the line *before* it lets the memory
go, and readers look again after the last byte: if the line is unchanged, the memory was there all the time.

Who writes also locks its line meanwhile (a shared lock on a byte of the file, which the kernel drops with the
writer): so the owner can wait until nobody writes any more, and give the memory to others.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

NUM_SLOTS = 1 << 17
KEY_BYTES = 8
WRITERS_S = 10.0
"""Time after which no writer can still be using a key: writers check it between chunks."""
_TICK_S = 0.0005


class TableFull(RuntimeError):
    """The error of more registrations than the table has lines."""


class Table:
    """The table of this process' registrations. Lines that were never used take no memory."""

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
        """Return a free line, and a new key that was written to it."""
        with self._lock:
            if self._free:
                slot = self._free.pop(0) if len(self._free) > 64 else self._free.pop()
            elif self._num_used < NUM_SLOTS:
                slot = self._num_used
                self._num_used += 1
            else:
                raise TableFull(
                    f"{NUM_SLOTS} buffers are registered in this process: drop() those no longer needed"
                )
            key = secrets.randbits(63) | 1
            self._keys[slot] = key
            return slot, key

    def clear(self, slot: int) -> None:
        """Clear a line, so that later lookups fail."""
        self._keys[slot] = 0

    def free(self, slot: int) -> None:
        """Make a cleared line available again."""
        with self._lock:
            self._free.append(slot)

    def holds(self, slot: int, key: int) -> bool:
        """Return whether a line has this key."""
        return self._keys[slot] == key

    def wait_for_writers(self, slot: int) -> None:
        """Wait until no process writes to the memory of a cleared line any more."""
        deadline = time.monotonic() + WRITERS_S
        while not _lock(self.fd, slot, fcntl.F_WRLCK) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        _lock(self.fd, slot, fcntl.F_UNLCK)


def _lock(fd: int, slot: int, kind: int) -> bool:
    """Lock or unlock the byte of a line for this open file; return whether that succeeded."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, slot, 1, 0))
    except BlockingIOError:
        return False
    return True


class TableView:
    """Another process' table, read-only.

    Raises:
        FileNotFoundError: if the process is gone, or another one by now.
        PermissionError: if the system doesn't let us look.
    """

    def __init__(self, pid: int, fd: int, inode: int) -> None:
        self._fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(self._fd).st_ino != inode:
            raise FileNotFoundError(f"process {pid} has another table")
        self._map = mmap.mmap(self._fd, NUM_SLOTS * KEY_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        self._keys = memoryview(self._map).cast("Q")
        self._writers: dict[int, int] = {}
        self._lock = threading.Lock()

    def holds(self, slot: int, key: int) -> bool:
        """Return whether a line has this key."""
        return bool(self._keys[slot] == key)

    @contextmanager
    def writing(self, slot: int) -> Iterator[None]:
        """Make the owner wait for this process before it releases the memory of a line. Check the key within
        the block, because the line may have been cleared before.
        """
        with self._lock:  # the lock belongs to the open file: several threads of this process share it
            self._writers[slot] = self._writers.get(slot, 0) + 1
            if self._writers[slot] == 1:
                _lock(self._fd, slot, fcntl.F_RDLCK)
        try:
            yield
        finally:
            with self._lock:
                self._writers[slot] -= 1
                if not self._writers[slot]:
                    del self._writers[slot]
                    _lock(self._fd, slot, fcntl.F_UNLCK)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)
