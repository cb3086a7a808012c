"""Reads many lines of one cell or call from memory that the rank shares with this process.

A mark in the rank's pipe says where they begin, and another one where they end (`marks.BURST`, `BURST_END`).
Between the two this process looks by itself, at all ranks at once, seldom where little comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from monarch_nb._host.loop import Loop
from monarch_nb._wire.marks import TEXT, Piece
from monarch_nb._wire.text_memory import TextReader

SOON_S, LOOK_S, MAX_LOOK_S = 0.004, 0.016, 0.032
"""Seconds from the beginning of lines to the first look, and from look to look: twice as many after one that
finds nothing.
"""


class Bursts:
    """The readers of this host whose ranks' lines come at the moment. Owned by the loop thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._coming: set[BurstReader] = set()
        self._wait_s = LOOK_S
        self._looks = False

    def __contains__(self, reader: BurstReader) -> bool:
        return reader in self._coming

    def add(self, reader: BurstReader) -> None:
        """Look at a reader's memory from now on."""
        self._coming.add(reader)
        self._wait_s = LOOK_S
        if not self._looks:
            self._looks = True
            self._loop.call_later(SOON_S, self._look)

    def discard(self, reader: BurstReader) -> None:
        """Look at a reader's memory no more."""
        self._coming.discard(reader)

    def read(self) -> bool:
        """Take the lines that are there; False if there are none."""
        return sum(reader.read() for reader in list(self._coming)) > 0

    def _look(self) -> None:
        found = self.read()
        self._looks = bool(self._coming)
        if self._looks:
            self._wait_s = LOOK_S if found else min(2 * self._wait_s, MAX_LOOK_S)
            self._loop.call_later(self._wait_s, self._look)


class BurstReader:
    """The reader of one rank's memory. Owned by the loop thread.

    Args:
        read_pipe: reads what the pipe has, which may end what is read here.
        bursts: of all ranks here.
    """

    def __init__(
        self,
        text: TextReader,
        bursts: Bursts,
        on_piece: Callable[[Piece], None],
        read_pipe: Callable[[], None],
    ) -> None:
        self._text = text
        self._bursts = bursts
        self._on_piece = on_piece
        self._read_pipe = read_pipe
        self._origin = 0

    def on_begin(self, origin: int, start: int) -> None:
        """Read lines of a cell or call from a position on."""
        self._origin, self._text.at = origin, start
        self._bursts.add(self)

    def on_end(self, position: int) -> None:
        """Read what is left up to a position; nothing comes after it."""
        if self in self._bursts:
            self._bursts.discard(self)
            self._pass_on(lambda: self._text.text(position))

    def read(self) -> bool:
        """Take the lines that are there; False if there are none."""
        self._read_pipe()
        return self in self._bursts and self._pass_on(self._text.lines)

    def _pass_on(self, read: Callable[[], bytes]) -> bool:
        found = False
        while data := read():
            found = True
            self._on_piece(Piece(TEXT, self._origin, "stdout", data))
        return found

    def close(self) -> None:
        """Take what is left; look no more. Called when the pipe has been read, and the rank has ended."""
        if self in self._bursts:
            self._bursts.discard(self)
            self._pass_on(self._text.rest)
        self._text.close()


def open_text(whose: bytes) -> TextReader | None:
    """Return the reader of the memory that a process has; None if it can't be had: the rank goes on without.

    Args:
        whose: pid and descriptor, as in b"123:45".
    """
    with suppress(OSError, ValueError):
        pid, _, number = whose.decode().partition(":")
        fd = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return TextReader(fd)
        except OSError:
            os.close(fd)
    return None
