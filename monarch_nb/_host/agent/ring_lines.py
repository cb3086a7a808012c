"""Reads lines of a rank that prints many from a ring buffer that it shares with this process.

The rank wakes this process by a mark in its pipe (`marks.RING`). Then this process looks by itself as long as
lines come, so that a line costs the rank no system call. What the pipe has before a mark is older than what
the ring has from there on; so the pipe is read first, up to a look's beginning at least.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from monarch_nb._host.loop import Loop
from monarch_nb._wire.marks import Parser, Piece
from monarch_nb._wire.ring import RingError, RingReader

LOOK_S = 0.002
"""Seconds between two looks while lines come."""
_LOOKS_WITHOUT = 2
"""Number of looks that find nothing before there are no more: one asks to be woken, and one is for what was
written meanwhile.
"""


class RingLines:
    """The reader of one ring. Owned by the loop thread.

    Args:
        parser: for what lies in the ring, which has marks of its own.
        read_pipe: reads what the pipe has.
        coming: of all ranks here, those whose lines come at the moment.
    """

    def __init__(
        self,
        ring: RingReader,
        loop: Loop,
        parser: Parser,
        on_piece: Callable[[Piece], None],
        read_pipe: Callable[[], None],
        coming: set[RingLines],
    ) -> None:
        self._ring = ring
        self._loop = loop
        self._parser = parser
        self._on_piece = on_piece
        self._read_pipe = read_pipe
        self._coming = coming
        self._num_without = 0
        self._is_closed = False
        ring.sleep()

    def on_mark(self, num_bytes: int) -> None:
        """Take lines up to a number of bytes, as the pipe has it; look for more from now on."""
        self._take_up_to(num_bytes)
        self._num_without = 0
        if self not in self._coming:
            self._coming.add(self)
            self._loop.call_later(LOOK_S, self._look)

    def _take_up_to(self, up_to: int) -> bool:
        data = self._ring.read(up_to)
        for piece in self._parser.feed(data):
            self._on_piece(piece)
        return bool(data)

    def read(self) -> bool:
        """Take what is there; False if that's nothing."""
        there = self._ring.num_written
        self._read_pipe()
        return not self._is_closed and self._take_up_to(there)  # closed: the pipe has ended

    def _look(self) -> None:
        if self._is_closed:
            return
        self._num_without = 0 if self.read() else self._num_without + 1
        if self._is_closed:
            return
        if self._num_without == 1:
            self._ring.sleep()
        if self._num_without < _LOOKS_WITHOUT:
            self._loop.call_later(LOOK_S, self._look)
        else:
            self._coming.remove(self)

    def close(self) -> None:
        """Take what is left; look no more. Called when the pipe has been read."""
        if not self._is_closed:
            self._is_closed = True
            self._coming.discard(self)
            self._take_up_to(self._ring.num_written)
            self._ring.close()


def open_ring(whose: bytes) -> RingReader | None:
    """Return the ring that a process has; None if it can't be had: then the rank goes on without.

    Args:
        whose: pid and descriptor, as in b"123:45".
    """
    with suppress(OSError, ValueError, RingError):
        pid, _, number = whose.decode().partition(":")
        fd = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return RingReader(fd)
        finally:
            os.close(fd)
    return None
