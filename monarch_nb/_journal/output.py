"""What the ranks printed, in order, in files of bounded size: `output-START.bin`, where START is a position.

A position is a number of bytes since the journal began, over all files. The oldest file goes when all are more than `max_bytes`, or
when it hasn't been written to for `max_age_s`; who reads from a position that is gone hears how much is missing.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from monarch_nb._journal import record as records
from monarch_nb._journal.record import HEADER, Record

MAX_BYTES = 1 << 30
SEGMENT_BYTES = 32 << 20
MAX_AGE_S = 30 * 86400.0
_SCAN_BYTES = 1 << 20
MARK_BYTES = 1 << 18
"""How far apart positions are from which one can read, when going backwards."""


class Scan(NamedTuple):
    """What a scan found: packed records, the position after it, and how many bytes were gone before it began."""

    data: bytes
    position: int
    num_lost_bytes: int


class OutputStore:
    """Appends and reads. One process writes; others may only read files that are there (`read_all`).

    Args:
        directory: made with mode 0700 if it isn't there.
        max_bytes: what all files together may have.
    """

    def __init__(
        self,
        directory: str,
        *,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.directory = directory
        self.max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._max_age_s = max_age_s
        self._starts: list[int] = []
        self._marks: list[int] = []
        """Beginnings of records, `MARK_BYTES` apart or so; each file's beginning is one."""
        self._fd = -1
        self.end = 0
        """Position after the last record."""
        self.groups: dict[str, int] = {}
        self._next_seq = 1
        self._written_groups: set[int] = set()

    @property
    def start(self) -> int:
        """Position of the oldest record that is still there."""
        return self._starts[0] if self._starts else self.end

    def append(
        self, kind: int, stream: str, group: str, rank: int, origin: int, data: bytes
    ) -> tuple[Record, bytes]:
        """Write a record; return it, and its bytes."""
        index = self.groups.setdefault(group, len(self.groups))
        if self._fd < 0 or self.end - self._starts[-1] >= self._segment_bytes:
            self._new_segment()
        if index not in self._written_groups:
            self._written_groups.add(index)
            self._write(Record(records.GROUP, "stdout", index, 0, 0, 0, time.time(), group.encode()))
        record = Record(kind, stream, index, rank, origin, self._take_seq(), time.time(), data)
        return record, self._write(record)

    def _take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _write(self, record: Record) -> bytes:
        packed = records.pack(record)
        if self.end - self._marks[-1] >= MARK_BYTES:
            self._marks.append(self.end)
        view = memoryview(packed)
        while view:
            view = view[os.write(self._fd, view) :]
        self.end += len(packed)
        return packed

    def _new_segment(self) -> None:
        self.close()
        self._starts.append(self.end)
        self._marks.append(self.end)
        self._written_groups.clear()
        self._fd = os.open(self._path(self.end), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._drop_old()

    def _path(self, start: int) -> str:
        return os.path.join(self.directory, f"output-{start:016x}.bin")

    def _drop_old(self) -> None:
        while len(self._starts) > 1 and (
            self.end - self.start > self.max_bytes or self._is_old(self._starts[0])
        ):
            with suppress(OSError):
                os.unlink(self._path(self._starts.pop(0)))
            del self._marks[: bisect_left(self._marks, self._starts[0])]

    def _is_old(self, start: int) -> bool:
        try:
            return time.time() - os.stat(self._path(start)).st_mtime > self._max_age_s
        except OSError:
            return True

    # --- reading

    def scan(self, position: int, wanted: Callable[[Record], bool] | None, max_bytes: int = _SCAN_BYTES) -> Scan:
        """Read on from `position`: the wanted records of the next `max_bytes` or so.

        `wanted` sees a record without its data. A record that is larger than `max_bytes` comes by itself.
        """
        num_lost = max(0, self.start - position)
        position = max(position, self.start)
        if position >= self.end:
            return Scan(b"", position, num_lost)
        segment = max(s for s in self._starts if s <= position)
        with open(self._path(segment), "rb") as file:
            file.seek(position - segment)
            data = file.read(max_bytes)
            if len(data) >= HEADER.size:
                (size,) = HEADER.unpack_from(data)[:1]
                if size + HEADER.size > len(data):
                    data += file.read(size + HEADER.size - len(data))
        kept, used = _pick(data, wanted)
        return Scan(kept, position + used, num_lost)

    def scan_back(self, before: int, wanted: Callable[[Record], bool] | None) -> tuple[Scan, int]:
        """Read the stretch that ends at `before`, where a record ends; return it, and where it begins (`start`: there's nothing before it)."""
        before = min(before, self.end)
        at = bisect_left(self._marks, before) - 1
        if at < 0 or before <= self.start:
            return Scan(b"", self.start, 0), self.start
        begin = self._marks[at]
        return self.scan(begin, wanted, before - begin), begin

    def tail_start(self, num_bytes: int) -> int:
        """Return a position at the beginning of a file, at least `num_bytes` before the end if there is as much."""
        return max((s for s in self._starts if s <= self.end - num_bytes), default=self.start)

    def close(self) -> None:
        """Close the file that is being written."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def move(self, directory: str) -> None:
        """Go on in another directory; what is there already goes along."""
        import shutil

        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.close()
        for start in self._starts:
            name = os.path.basename(self._path(start))
            shutil.move(os.path.join(self.directory, name), os.path.join(directory, name))
        self.directory = directory
        if self._starts:
            self._fd = os.open(self._path(self._starts[-1]), os.O_RDWR | os.O_APPEND)


def _pick(data: bytes, wanted: Callable[[Record], bool] | None) -> tuple[bytes, int]:
    """Return the wanted whole records in `data`, and how many bytes all whole records have."""
    at, end = 0, len(data)
    kept = []
    while at + HEADER.size <= end:
        size, kind, stream, group, rank, origin, seq, when = HEADER.unpack_from(data, at)
        after = at + HEADER.size + size
        if after > end:
            break
        if kind != records.GROUP and (
            wanted is None or wanted(Record(kind, records.STREAMS[stream], group, rank, origin, seq, when, b""))
        ):
            kept.append(data[at:after])
        at = after
    return b"".join(kept), at


def read_all(directory: str) -> Iterator[tuple[str, Record]]:
    """Yield (group, record) of a journal that may have ended, oldest first."""
    names = sorted(n for n in os.listdir(directory) if n.startswith("output-") and n.endswith(".bin"))
    for name in names:
        groups: dict[int, str] = {}
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        for record in records.unpack(data):
            if record.kind == records.GROUP:
                groups[record.group] = record.data.decode()
            else:
                yield groups.get(record.group, ""), record
