"""What a rank prints: read from its pipe, cut into pieces, kept on disk, passed on to who listens."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from monarch_nb._host.loop import Loop
from monarch_nb._wire.marks import TEXT, Parser, Piece

PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18
LOG_BYTES = 64 << 20
"""Size at which a rank's log starts anew; one old file is kept."""


class OutputReader:
    """The reading end of one pipe. Owned by the loop thread."""

    def __init__(self, loop: Loop, token: str, stream: str, on_piece: Callable[[Piece], None]) -> None:
        self._loop = loop
        self._parser = Parser(token, stream)
        self._on_piece = on_piece
        self._fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        with suppress(OSError):  # beyond the user's limit of pipe pages: the default size does
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        loop.watch_file(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        for piece in self._parser.feed(data):
            self._on_piece(piece)

    def drain(self) -> None:
        """Read what is there; whoever still holds the other end is not waited for."""
        while self._fd >= 0:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            for piece in self._parser.feed(data):
                self._on_piece(piece)

    def close(self) -> None:
        """Stop reading."""
        if self._fd >= 0:
            self._loop.forget_file(self._fd)
            os.close(self._fd)
            self._fd = -1


class LogFile:
    """One rank's output on disk, mode 0600, capped."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: Any = None

    def write(self, data: bytes) -> None:
        """Append, starting a new file when the cap is reached."""
        if self._file is None:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = open(fd, "ab", buffering=0)  # noqa: SIM115 - kept open
        self._file.write(data)
        if self._file.tell() > LOG_BYTES:
            self._file.close()
            self._file = None
            os.replace(self.path, self.path + ".1")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class OutputLog:
    """All ranks' logs in one directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._files: dict[str, LogFile] = {}

    def write(self, name: str, piece: Piece) -> None:
        """Keep a piece of text under `name`."""
        if piece.kind != TEXT:
            return
        if name not in self._files:
            self._files[name] = LogFile(os.path.join(self._directory, name + ".log"))
        self._files[name].write(piece.data)

    def tail(self, name: str, max_bytes: int) -> bytes:
        """Return the last `max_bytes` kept under `name`, whole lines only where it's cut."""
        path = os.path.join(self._directory, name + ".log")
        data = _tail_of(path, max_bytes)
        if len(data) < max_bytes:
            data = _tail_of(path + ".1", max_bytes - len(data)) + data
        return data

    def names(self) -> list[str]:
        """Return the names under which something was kept."""
        return sorted(self._files)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


def _tail_of(path: str, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read()
    except FileNotFoundError:
        return b""
    if size > max_bytes:
        data = data[data.find(b"\n") + 1 :]
    return data
