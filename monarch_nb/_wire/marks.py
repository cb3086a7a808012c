"""Marks in a rank's output, which delimit the bytes of each cell, and place rich displays between the lines.

What a rank prints goes through a pipe whose other end the host process holds, so that the last words of a
crash are kept, C++ and NCCL output counts too, and order is as written. Marks are in that same pipe, so they
can't overtake the text; where text lies in memory, marks say where it begins and ends. A mark is an operating
system command of the terminal's escape language with a token that is drawn anew for each rank, so that no
program prints one by accident; a terminal that got one anyway would show nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

from monarch_nb._protocol.shown import Shown

TEXT = "t"  #: text of this origin and stream follows
DISPLAY = "d"  #: a rich display; the argument is base64 of JSON
#: all output before this mark was printed before the answer that has the same number, which is the argument
SETTLED = "s"
#: text of this origin follows that lies in memory, from the position in the argument on
BURST = "b"
#: the argument is the position where that text ends
BURST_END = "e"
#: there is such memory from now on: the argument is pid and descriptor, as in 123:45
BURST_MEMORY = "m"

_MAX_HELD_BYTES = 64 << 20


class Piece(NamedTuple):
    """A stretch of output. `kind`: one of those above; `stream`: "stdout" or "stderr"."""

    kind: str
    origin: int
    stream: str
    data: bytes


def mark(token: str, kind: str, origin: int, argument: str = "") -> bytes:
    """Return the bytes of a mark."""
    return f"\x1b]777;{token};{kind};{origin};{argument}\x07".encode()


def display_mark(token: str, origin: int, shown: Shown) -> bytes:
    """Return the mark of a rich display."""
    return mark(token, DISPLAY, origin, base64.b64encode(shown.as_json()).decode())


class Parser:
    """The parser of one pipe's bytes into pieces; it keeps an incomplete mark until the rest arrives."""

    def __init__(self, token: str, stream: str) -> None:
        self._start = f"\x1b]777;{token};".encode()
        self._held = b""
        self.origin = 0
        self.stream = self._own_stream = stream

    def begin_origin(self, origin: int) -> None:
        """Assign output without a mark, from now on, to this pipe's own stream and to `origin`."""
        self.origin, self.stream = origin, self._own_stream

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield the pieces in `data`, in order."""
        data = self._held + data
        self._held = b""
        while data:
            at = data.find(self._start)
            if at < 0:
                keep = self._partial_start(data)
                yield from self._text(data[: len(data) - keep])
                self._held = data[len(data) - keep :] if keep else b""
                return
            yield from self._text(data[:at])
            end = data.find(b"\x07", at)
            if end < 0:
                if len(data) - at < _MAX_HELD_BYTES:
                    self._held = data[at:]
                    return
                data = data[at + len(self._start) :]  # no mark is that long; text follows
                continue
            yield from self._mark(data[at + len(self._start) : end])
            data = data[end + 1 :]

    def _text(self, data: bytes) -> Iterator[Piece]:
        if data:
            yield Piece(TEXT, self.origin, self.stream, data)

    def _partial_start(self, data: bytes) -> int:
        """Return how many bytes at the end could be the beginning of a mark."""
        for n in range(min(len(self._start) - 1, len(data)), 0, -1):
            if self._start.startswith(data[-n:]):
                return n
        return 0

    def _mark(self, body: bytes) -> Iterator[Piece]:
        try:
            kind, origin, argument = body.decode().split(";", 2)
            number = int(origin)
        except ValueError:
            return
        if kind == TEXT:
            self.origin = number
            self.stream = argument or self.stream
        elif kind == DISPLAY:
            yield from self._display(number, argument)
        elif kind in (SETTLED, BURST, BURST_END, BURST_MEMORY):
            yield Piece(kind, number, self.stream, argument.encode())

    def _display(self, origin: int, argument: str) -> Iterator[Piece]:
        try:
            yield Piece(DISPLAY, origin, self.stream, base64.b64decode(argument, validate=True))
        except ValueError:  # not base64, or not even ASCII
            yield Piece(TEXT, origin, self.stream, b"[a display was garbled by output of another thread]\n")
