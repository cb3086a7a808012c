"""A ring buffer in memory that a rank and its host process share, for lines of a program that prints many.

A line in it has left the rank: the host process finds it there whatever becomes of the rank, as it does with
a pipe, but no system call is made for it. One process writes, one reads. Bytes are counted from the first one
on, so that none of the two has to lock: the writer alone changes `HEAD`, the reader alone `TAIL`. A line is
copied before `HEAD` is moved; a processor that may show another one these two steps in the other order
(`KEEPS_ORDER` is false) must not use it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform

KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64")
HEADER_BYTES = 4096
RING_BYTES = 1 << 17
_SPARE_BYTES = 4096

# Words of 8 bytes in the header, each in a line of the processor's cache of its own.
HEAD = 0
"""Number of bytes that were written."""
TAIL = 8
"""Number of bytes that were read."""
IS_ASLEEP = 16
"""Whether the reader must be woken when there is something to read: it sets this, who wakes it clears it."""
IS_READY = 24
"""Whether there is a reader."""

_END = HEADER_BYTES + RING_BYTES
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""The memory can't shrink or grow any more, nor can that be changed: the reader would die of SIGBUS."""


class RingError(ValueError):
    """Raised where something isn't a ring that should be."""


class RingWriter:
    """The writing end.

    What is written often is written by its parts, without a call to a method of ours:

        if ring.tell() + len(data) <= ring.limit:
            ring.write(data)
            ring.words[HEAD] = ring.base + ring.tell()
        elif not ring.append(data): ...  # it's full

    Raises:
        OSError: if there's no memory.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("monarch_nb-lines", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, _END)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, _END)
        except OSError:
            os.close(self.fd)
            raise
        self._map.seek(HEADER_BYTES)
        self.words = memoryview(self._map)[:HEADER_BYTES].cast("Q")
        self.write, self.tell = self._map.write, self._map.tell
        self.base = -HEADER_BYTES
        """What is added to a position in the memory to get the number of bytes written up to there."""
        self.limit = 0
        """Up to this position, pieces may be written without asking. Some room is spared behind it: two
        threads may have looked at it before either has written.
        """
        self._set_limit()

    @property
    def is_ready(self) -> bool:
        """Whether there is a reader."""
        return self.words[IS_READY] == 1

    def append(self, data: bytes) -> bool:
        """Write a piece, round the end of the memory if need be; False if there's no room."""
        if len(data) > RING_BYTES - (self.words[HEAD] - self.words[TAIL]):
            return False
        room = _END - self.tell()
        if len(data) >= room:
            self.write(data[:room])
            self._map.seek(HEADER_BYTES)
            self.base += RING_BYTES
            data = data[room:]
        self.write(data)
        self.words[HEAD] = self.base + self.tell()
        self._set_limit()
        return True

    def _set_limit(self) -> None:
        self.limit = min(_END, self.words[TAIL] + RING_BYTES - self.base) - _SPARE_BYTES


class RingReader:
    """The reading end.

    Args:
        fd: the writer's descriptor; it can be closed afterwards.

    Raises:
        OSError: if it can't be mapped.
        RingError: if it's no ring.
    """

    def __init__(self, fd: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size != _END:
            raise RingError("not a ring: its size or its seals differ")
        self._map = mmap.mmap(fd, _END)
        self._words = memoryview(self._map)[:HEADER_BYTES].cast("Q")
        self._num_read = 0
        self._words[IS_READY] = 1

    @property
    def num_written(self) -> int:
        """Number of bytes that were written so far."""
        return self._words[HEAD]

    def read(self, up_to: int) -> bytes:
        """Return what was written, up to a number of bytes from the first one; nothing if that was read."""
        start, num = self._num_read, up_to - self._num_read
        if num <= 0:
            return b""
        self._num_read = up_to
        if num > RING_BYTES:  # whoever has written that number isn't our writer
            data = b""
        else:
            at = HEADER_BYTES + start % RING_BYTES
            data = self._map[at : min(at + num, _END)]
            data += self._map[HEADER_BYTES : HEADER_BYTES + num - len(data)]
        self._words[TAIL] = up_to
        return data

    def sleep(self) -> None:
        """Ask to be woken when there is something to read. A line that is written at this moment may not see
        that: look once more a little later.
        """
        self._words[IS_ASLEEP] = 1

    def close(self) -> None:
        """Give the memory back."""
        self._words.release()
        self._map.close()
