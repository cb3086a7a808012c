"""Stores the output of ranks, in order, in files of bounded size: `output-START.bin`, where START is a
position.

A position is a number of bytes since the journal began, over all files. The oldest file goes when all are
more than `max_bytes`, or when it hasn't been written to for `max_age_s`; who reads from a position that is
gone hears how much is missing.

A disk that can't be written to keeps nobody from anything: records pass through and aren't kept until
`resume` has worked. What was written of a record in part is cut off again, and if that fails, too, it's the
end of a file, where readers leave it out: the next record begins another file.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from monarch_nb._journal import record as records
from monarch_nb._journal.record import HEADER, Record
from monarch_nb._journal.retention import KEEP_S
from monarch_nb._journal.secrets import mask

MAX_BYTES = 1 << 30
SEGMENT_BYTES = 32 << 20
SCAN_BYTES = 1 << 20
MARK_BYTES = 1 << 18
"""Distance of positions from which reading can start, when going backwards."""


class Appended(NamedTuple):
    """An appended record with its bytes, and whether they're on disk."""

    record: Record
    packed: bytes
    kept: bool


class Scan(NamedTuple):
    """The result of a scan: packed records, the position after them, and how many bytes before that were
    gone.
    """

    data: bytes
    position: int
    num_lost_bytes: int


class OutputStore:
    """The store of printed output, which appends and reads records. One process writes; others may only read
    files that are there (`read_all`).

    Args:
        directory: made with mode 0700 by the first record, if it isn't there.
        max_bytes: what all files together may have.
    """

    def __init__(
        self,
        directory: str,
        *,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        max_age_s: float = KEEP_S,
    ) -> None:
        self._segment_since = 0.0
        self.directory = directory
        self.max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self.max_age_s = max_age_s
        self._starts: list[int] = []
        self._marks: list[int] = []
        """Beginnings of records, `MARK_BYTES` apart or so; each file's beginning is one."""
        self._fd = -1
        self.end = 0
        """Position after the last record."""
        self.groups: dict[str, int] = {}
        self.is_paused = False
        """Whether keeping records is paused."""
        self.num_unkept_bytes = 0
        """Number of bytes of records since the pause began."""
        self.when_broken: Callable[[OSError], None] = lambda _error: None
        """Called with the error when nothing is kept any more."""
        self._next_seq = 1
        self._written_groups: set[int] = set()

    @property
    def start(self) -> int:
        """Position of the oldest record that still exists."""
        return self._starts[0] if self._starts else self.end

    def append(
        self, kind: int, stream: str, group: str, rank: int, origin: int, data: bytes, *, keep: bool = True
    ) -> Appended:
        """Write a record, if possible, with probable secrets masked.

        Args:
            keep: whether it's to be written.
        """
        index = self.groups.setdefault(group, len(self.groups))
        record = Record(kind, stream, index, rank, origin, self._take_seq(), time.time(), data)
        packed = records.pack(record)
        if not keep:
            return Appended(record, packed, False)
        masked = mask(data)
        kept = not self.is_paused and self._keep(
            group, index, packed if masked is data else records.pack(record._replace(data=masked))
        )
        if not kept:
            self.num_unkept_bytes += len(packed)
        return Appended(record, packed, kept)

    def _take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _keep(self, group: str, index: int, packed: bytes) -> bool:
        try:
            if self._fd < 0 or self._is_full():
                self._new_segment()
            if index not in self._written_groups:
                self._write(
                    records.pack(Record(records.GROUP, "stdout", index, 0, 0, 0, time.time(), group.encode()))
                )
                self._written_groups.add(index)
            self._write(packed)
        except OSError as error:
            self.pause()
            self.when_broken(error)
            return False
        return True

    def _is_full(self) -> bool:
        """Say whether the file is large, or so old that its content couldn't be dropped by age."""
        return (
            self.end - self._starts[-1] >= self._segment_bytes
            or time.time() - self._segment_since > self.max_age_s / 8
        )

    def _write(self, packed: bytes) -> None:
        if self.end - self._marks[-1] >= MARK_BYTES:
            self._marks.append(self.end)
        view = memoryview(packed)
        while view:
            view = view[os.write(self._fd, view) :]
        self.end += len(packed)

    def _new_segment(self) -> None:
        self.close()
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        self._fd = os.open(self._path(self.end), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._segment_since = time.time()
        self._starts.append(self.end)
        self._marks.append(self.end)
        self._written_groups.clear()
        self.drop_old()

    # --- pauses

    def pause(self) -> None:
        """Stop keeping records; a partially written one is cut off."""
        self.is_paused = True
        if self._fd < 0:
            return
        with suppress(OSError):
            os.ftruncate(self._fd, self.end - self._starts[-1])
        self.close()
        if self._starts[-1] == self.end:
            self._drop_empty()

    def _drop_empty(self) -> None:
        """Drop the last file, into which nothing could be written: another begins at the same position."""
        with suppress(OSError):
            os.unlink(self._path(self._starts.pop()))
        self._marks = [m for m in self._marks if m < self.end]

    def resume(self, note: str) -> None:
        """Resume keeping records; the first one is a note about the missing ones.

        Raises:
            OSError: if they still can't be kept.
        """
        try:
            self._new_segment()
            self._write(
                records.pack(
                    Record(records.NOTE, "stderr", 0, 0, 0, self._take_seq(), time.time(), note.encode())
                )
            )
        except OSError:
            self.pause()
            raise
        self.is_paused, self.num_unkept_bytes = False, 0

    def _path(self, start: int) -> str:
        return os.path.join(self.directory, f"output-{start:016x}.bin")

    def drop_old(self) -> None:
        """Drop files that are too old, or beyond the maximum size."""
        while len(self._starts) > 1 and (
            self.end - self.start > self.max_bytes or self._is_old(self._starts[0])
        ):
            with suppress(OSError):
                os.unlink(self._path(self._starts.pop(0)))
            del self._marks[: bisect_left(self._marks, self._starts[0])]

    def _is_old(self, start: int) -> bool:
        try:
            return time.time() - os.stat(self._path(start)).st_mtime > self.max_age_s
        except OSError:
            return True

    # --- reading

    def scan(
        self, position: int, wanted: Callable[[Record], bool] | None, max_bytes: int = SCAN_BYTES
    ) -> Scan:
        """Read from `position` on: the wanted records of about the next `max_bytes`.

        `wanted` sees a record without its data. A record that is larger than `max_bytes` comes by itself.
        """
        num_lost = max(0, self.start - position)
        position = max(position, self.start)
        if position >= self.end:
            return Scan(b"", position, num_lost)
        data, end = self._read(position, max_bytes)
        kept, used = _pick(data, wanted)
        if not used:  # somebody has removed the file, or truncated it
            return Scan(b"", end, num_lost + end - position)
        return Scan(kept, position + used, num_lost)

    def _read(self, position: int, max_bytes: int) -> tuple[bytes, int]:
        """Return some bytes from a position on, at least one record, and the end of their file."""
        at = bisect_right(self._starts, position)
        segment = self._starts[at - 1]
        end = self._starts[at] if at < len(self._starts) else self.end
        left = end - position  # data behind it was written partially, and couldn't be truncated
        try:
            with open(self._path(segment), "rb") as file:
                file.seek(position - segment)
                data = file.read(min(max_bytes, left))
                if len(data) >= HEADER.size:
                    (size,) = HEADER.unpack_from(data)[:1]
                    if size + HEADER.size > len(data):
                        data += file.read(min(size + HEADER.size, left) - len(data))
        except OSError:
            return b"", end
        return data, end

    def scan_back(self, before: int, wanted: Callable[[Record], bool] | None) -> tuple[Scan, int]:
        """Read the part that ends at `before`, where a record ends; return it, and its beginning (`start`:
        nothing precedes it).
        """
        before = min(before, self.end)
        at = bisect_left(self._marks, before) - 1
        if at < 0 or before <= self.start:
            return Scan(b"", self.start, 0), self.start
        begin = self._marks[at]
        return self.scan(begin, wanted, before - begin), begin

    def tail_start(self, num_bytes: int) -> int:
        """Return the position of a file's beginning, at least `num_bytes` before the end if there are that
        many.
        """
        return max((s for s in self._starts if s <= self.end - num_bytes), default=self.start)

    def close(self) -> None:
        """Close the file that is being written."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def move(self, directory: str) -> None:
        """Continue in another directory; existing files are moved.

        Raises:
            OSError: if that can't be written there; then all stays where it was.
        """
        import shutil

        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.close()
        names = [os.path.basename(self._path(start)) for start in self._starts]
        try:
            for name in names:
                shutil.copy2(os.path.join(self.directory, name), os.path.join(directory, name))
        except OSError:
            for name in names:
                with suppress(OSError):
                    os.unlink(os.path.join(directory, name))
            raise
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(self.directory, name))
        self.directory = directory
        if self._starts:
            self._fd = os.open(self._path(self._starts[-1]), os.O_RDWR | os.O_APPEND)


def _pick(data: bytes, wanted: Callable[[Record], bool] | None) -> tuple[bytes, int]:
    """Return the wanted complete records in `data`, and the number of bytes of all complete records."""
    at, end = 0, len(data)
    kept = []
    while at + HEADER.size <= end:
        size, kind, stream, group, rank, origin, seq, when = HEADER.unpack_from(data, at)
        after = at + HEADER.size + size
        if after > end:
            break
        if kind != records.GROUP and (
            wanted is None
            or wanted(Record(kind, records.STREAMS[stream], group, rank, origin, seq, when, b""))
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
