"""The activity page: a rank writes its activities into a page of memory that its host process can read at any
time, even if the rank can't answer.

    offset  bytes  field of a slot (little-endian; a page has `NUM_SLOTS` of them)
         0      4  number of changes
         4      4  state (IDLE, BUSY, DEBUGGING)
         8      8  since when, seconds since the epoch
        16      4  origin of the call (see `_journal.record`)
        20     96  what it's called, UTF-8, padded with zeros
       116      4  number of changes again: differs while a change is being written

Behind the slots, from `TOTALS_AT` on, is what the rank has moved on its own account by each path of the data
plane:

    offset  bytes  field of an entry (a page has `NUM_TOTALS` of them; unused ones are zero)
         0     16  the path's name, UTF-8, padded with zeros
        16      4  number of transfers
        20      8  bytes read
        28      8  bytes written
        36      8  seconds that they took, one after the other

Each slot is written by one thread: the first by the main thread, the others by one actor's each. A change is
one `pack_into`, about 0.3 us; the reader compares both numbers and takes the page again if they differ.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import suppress
from typing import Final, NamedTuple

PAGE_BYTES: Final = 4096
SLOT_BYTES: Final = 128
NUM_SLOTS: Final = 28
TOTALS_AT: Final = NUM_SLOTS * SLOT_BYTES
MAX_NAME_BYTES: Final = 96
IDLE, BUSY, DEBUGGING = 0, 1, 2

_SLOT: Final = struct.Struct(f"<IIdI{MAX_NAME_BYTES}sI")
_TOTAL: Final = struct.Struct("<16sIQQd")
NUM_TOTALS: Final = (PAGE_BYTES - TOTALS_AT) // _TOTAL.size
_STATE: Final = struct.Struct("<IId")
_TAIL: Final = struct.Struct("<I")
_TAIL_AT: Final = _SLOT.size - _TAIL.size


class Activity(NamedTuple):
    """The contents of one slot of an activity page; `is_main`: the slot is the main thread's."""

    num_changes: int
    state: int
    since: float
    origin: int
    name: str
    is_main: bool


class Total(NamedTuple):
    """The traffic of one path of the data plane: number of transfers, bytes read and written, seconds."""

    path: str
    num: int
    read_bytes: int
    written_bytes: int
    seconds: float


class ActivitySlot:
    """The part of an activity page in which one thread notes its activity."""

    __slots__ = ("_at", "_buffer", "_num_changes")

    def __init__(self, buffer: mmap.mmap | bytearray, index: int) -> None:
        self._buffer = buffer
        self._at = index * SLOT_BYTES
        self._num_changes = 0

    def begin_activity(self, name: bytes, origin: int = 0) -> None:
        """Write the activity that begins; names longer than `MAX_NAME_BYTES` are cut."""
        n = self._num_changes = (self._num_changes + 1) & 0xFFFFFFFF
        _SLOT.pack_into(self._buffer, self._at, n, BUSY, time.time(), origin, name, n)

    def end_activity(self) -> None:
        """Write that there is no activity."""
        self._set(IDLE)

    def set_debugging(self, stopped: bool) -> None:
        """Record that the thread has stopped at a breakpoint, or continues."""
        self._set(DEBUGGING if stopped else BUSY)

    def _set(self, state: int) -> None:
        n = self._num_changes = (self._num_changes + 1) & 0xFFFFFFFF
        _STATE.pack_into(self._buffer, self._at, n, state, time.time())
        _TAIL.pack_into(self._buffer, self._at + _TAIL_AT, n)


class ActivityPage:
    """The activity page of a process.

    Args:
        path: path of the file; without one, or where its disk is full, no process reads the page.
    """

    def __init__(self, path: str = "") -> None:
        self._buffer = _map(path) if path else bytearray(PAGE_BYTES)
        self._free = list(range(NUM_SLOTS - 1, 0, -1))
        self._nowhere = bytearray(SLOT_BYTES)
        self._taken: dict[ActivitySlot, int] = {}
        self.main = ActivitySlot(self._buffer, 0)

    def acquire_slot(self) -> ActivitySlot:
        """Return a free slot; when all are in use, one that nobody reads."""
        if not self._free:
            return ActivitySlot(self._nowhere, 0)
        index = self._free.pop()
        slot = ActivitySlot(self._buffer, index)
        self._taken[slot] = index
        return slot

    def release_slot(self, slot: ActivitySlot) -> None:
        """Clear a slot, for others to use."""
        index = self._taken.pop(slot, None)
        if index is not None:
            self._buffer[index * SLOT_BYTES : (index + 1) * SLOT_BYTES] = bytes(SLOT_BYTES)
            self._free.append(index)

    def put_total(self, index: int, total: Total) -> None:
        """Record the totals of the path with a given index; indices beyond `NUM_TOTALS` are ignored. One
        thread at a time.
        """
        if index < NUM_TOTALS:
            _TOTAL.pack_into(self._buffer, TOTALS_AT + index * _TOTAL.size, total.path.encode(), *total[1:])


def _map(path: str) -> mmap.mmap | bytearray:
    with suppress(OSError):
        os.unlink(path)  # left by an earlier rank; a process that has it open keeps the old file
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return bytearray(PAGE_BYTES)
    try:
        os.posix_fallocate(fd, 0, PAGE_BYTES)  # writing to a page without disk space raises SIGBUS
        return mmap.mmap(fd, PAGE_BYTES)
    except OSError:
        os.unlink(path)
        return bytearray(PAGE_BYTES)
    finally:
        os.close(fd)


def read_page(data: bytes, again: bytes | None = None) -> list[Activity] | None:
    """Return the activities in the used slots of a page; None if one is being written just now.

    Args:
        data: the page.
        again: the page, read once more. The kernel's copy need not go from front to back, so that both
            numbers of a slot can agree while what is between them is half old; what is the same twice is
            whole.

    >>> page = ActivityPage()
    >>> page.main.begin_activity(b"cell", 3)
    >>> [(a.state, a.name, a.origin) for a in read_page(bytes(page._buffer))]
    [(1, 'cell', 3)]
    """
    found = []
    for at in range(0, TOTALS_AT, SLOT_BYTES):
        head, state, since, origin, name, tail = _SLOT.unpack_from(data, at)
        if head != tail or (again is not None and data[at : at + SLOT_BYTES] != again[at : at + SLOT_BYTES]):
            return None
        if head:
            found.append(
                Activity(head, state, since, origin, name.rstrip(b"\0").decode("utf-8", "replace"), at == 0)
            )
    return found


def read_totals(data: bytes) -> list[Total]:
    """Return the data plane's totals in a page.

    >>> page = ActivityPage()
    >>> page.put_total(0, Total("shm", 2, 4096, 0, 0.5))
    >>> read_totals(bytes(page._buffer))
    [Total(path='shm', num=2, read_bytes=4096, written_bytes=0, seconds=0.5)]
    """
    found = []
    for index in range(NUM_TOTALS):
        name, *numbers = _TOTAL.unpack_from(data, TOTALS_AT + index * _TOTAL.size)
        if name[:1] == b"\0":
            break
        found.append(Total(name.rstrip(b"\0").decode("utf-8", "replace"), *numbers))
    return found
