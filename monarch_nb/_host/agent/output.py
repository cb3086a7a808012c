"""Reads a rank's output from its pipe, and cuts it into pieces."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from monarch_nb._host.loop import Loop
from monarch_nb._wire.marks import Parser, Piece

PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18


class OutputReader:
    """The reading end of one pipe. Owned by the loop thread."""

    def __init__(self, loop: Loop, token: str, stream: str, on_piece: Callable[[Piece], None]) -> None:
        self._loop = loop
        self._parser = Parser(token, stream)
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
        for piece in self._parser.feed(data):
            self._on_piece(piece)

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
            for piece in self._parser.feed(data):
                self._on_piece(piece)

    def close(self) -> None:
        """Stop reading."""
        if self.fd >= 0:
            self.on_close(self)
            self._loop.forget_file(self.fd)
            os.close(self.fd)
            self.fd = -1
