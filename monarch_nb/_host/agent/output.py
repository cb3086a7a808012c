"""Reads a rank's output from its pipe, or from memory that it shares, and cuts it into pieces."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from monarch_nb._host.agent.burst_reader import BurstReader, Bursts, open_text
from monarch_nb._host.loop import Loop
from monarch_nb._wire import marks
from monarch_nb._wire.marks import Parser, Piece

PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18
_OF_BURSTS = (marks.BURST, marks.BURST_END, marks.BURST_MEMORY)


class OutputReader:
    """The reading end of one pipe. Owned by the loop thread."""

    def __init__(
        self, loop: Loop, token: str, stream: str, on_piece: Callable[[Piece], None], bursts: Bursts
    ) -> None:
        self._loop = loop
        self._parser = Parser(token, stream)
        self._burst: BurstReader | None = None
        self._bursts = bursts
        self._on_piece = on_piece
        self.fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        with suppress(OSError):  # the user's limit of pipe pages is reached: the default size is enough
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.on_close: Callable[[OutputReader], None] = lambda _reader: None
        loop.watch_file(self.fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        for piece in self._parser.feed(data):
            if piece.kind in _OF_BURSTS:
                self._on_burst(piece)
            else:
                self._on_piece(piece)

    def _on_burst(self, piece: Piece) -> None:
        """Handle a mark of lines that don't come by the pipe."""
        if piece.kind == marks.BURST_MEMORY:
            text = open_text(piece.data) if self._burst is None else None
            if text is not None:
                self._burst = BurstReader(text, self._bursts, self._on_piece, self.drain)
        elif self._burst is not None and piece.data.isdigit():
            if piece.kind == marks.BURST:
                self._burst.on_begin(piece.origin, int(piece.data))
            else:
                self._burst.on_end(int(piece.data))

    def begin_origin(self, origin: int) -> None:
        """Assign unmarked output from now on to `origin`."""
        self._parser.begin_origin(origin)

    def drain(self) -> None:
        """Read the pipe's content, without waiting for processes that still hold its other end."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self._feed(data)

    def close(self) -> None:
        """Stop reading."""
        if self._burst is not None:
            self._burst.close()
            self._burst = None
        if self.fd >= 0:
            self.on_close(self)
            self._loop.forget_file(self.fd)
            os.close(self.fd)
            self.fd = -1
