"""Reads a rank's output from its pipe, and from its ring buffer if it has one, and cuts it into pieces."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from monarch_nb._host.agent.ring_lines import RingLines, open_ring
from monarch_nb._host.loop import Loop
from monarch_nb._wire import marks
from monarch_nb._wire.marks import Parser, Piece

PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18


class OutputReader:
    """The reading end of one pipe. Owned by the loop thread."""

    def __init__(
        self,
        loop: Loop,
        token: str,
        stream: str,
        on_piece: Callable[[Piece], None],
        coming: set[RingLines] | None = None,
    ) -> None:
        self._loop = loop
        self._parser = Parser(token, stream)
        self._lines: RingLines | None = None
        self._coming = set() if coming is None else coming
        self._lines_parser = Parser(token, stream)
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
            if piece.kind == marks.NEW_RING:
                self._open_ring(piece.data)
            elif piece.kind != marks.RING:
                self._on_piece(piece)
            elif self._lines is not None and piece.data.isdigit():
                self._lines.on_mark(int(piece.data))

    def _open_ring(self, whose: bytes) -> None:
        ring = open_ring(whose) if self._lines is None else None
        if ring is not None:
            self._lines = RingLines(
                ring, self._loop, self._lines_parser, self._on_piece, self.drain, self._coming
            )

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
        if self._lines is not None:
            self._lines.close()
        if self.fd >= 0:
            self.on_close(self)
            self._loop.forget_file(self.fd)
            os.close(self.fd)
            self.fd = -1
