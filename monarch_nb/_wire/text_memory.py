"""Memory that text of a rank lies in, and that its host process reads: for programs that print many lines.

Text in it has left the rank: the host process finds it there whatever becomes of the rank, as it does with a
pipe, but no system call is made for it, nor a function of Python's called. So nobody can say where it ends
but the text itself: what wasn't written yet is NUL. Each byte is written once, so what isn't NUL is there for
good, in whatever order a processor shows it. Text with NULs of its own is read when a mark says how much
there is.

The memory is far larger than what is in use: pages that were read are given back.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any

from monarch_nb._wire.bytes_in_file import open_bytes

HEADER_BYTES = mmap.PAGESIZE
SIZE_BYTES = 1 << 28
MOST_BYTES = 1 << 25
"""How much may be there that wasn't read: whoever writes then has to wait, by another way."""
READ_BYTES = 1 << 18
_NUM_READ, _IS_READY = 0, 1  # words of 8 bytes in the header
_WORD = struct.Struct("=Q")


class TextMemory:
    """The writing end.

    Raises:
        OSError: if there's no memory, or pages can't be given back.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("monarch_nb-text", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, SIZE_BYTES)
            self._pages = mmap.mmap(self.fd, SIZE_BYTES)
            self._pages.madvise(mmap.MADV_REMOVE, HEADER_BYTES, HEADER_BYTES)
        except OSError:
            os.close(self.fd)
            raise
        self._file: io.BytesIO | mmap.mmap
        self._file, self._offset = open_bytes(self.fd, SIZE_BYTES) or (self._pages, 0)
        self._words = memoryview(self._pages)[:HEADER_BYTES].cast("Q")
        self._first = HEADER_BYTES
        self._go_to(HEADER_BYTES)

    def tell(self) -> int:
        """Return where the next text will lie."""
        return self._file.tell() - self._offset

    def _go_to(self, position: int) -> None:
        self._file.seek(position + self._offset)

    @property
    def is_ready(self) -> bool:
        """Whether somebody reads it."""
        return self._words[_IS_READY] == 1

    @property
    def ends_with_line(self) -> bool:
        """Whether the last line is ended."""
        return not self.has_overflowed and self._pages[self.tell() - 1] in b"\n\r\0"

    def has_room(self) -> bool:
        """Give back what was read; return whether text may be written here."""
        read = self._words[_NUM_READ]
        end = read - read % mmap.PAGESIZE
        if HEADER_BYTES <= self._first < end <= self.tell():
            self._pages.madvise(mmap.MADV_REMOVE, self._first, end - self._first)
            self._first = end
        return self.tell() - max(read, self._first) < MOST_BYTES and self.tell() < SIZE_BYTES // 2

    def rewind(self) -> bool:
        """Go back to the beginning if all was read; return whether it was."""
        if self._words[_NUM_READ] < self.tell():
            return False
        self._pages.madvise(mmap.MADV_REMOVE, HEADER_BYTES, SIZE_BYTES - HEADER_BYTES)
        self._words[_NUM_READ] = self._first = HEADER_BYTES
        self._go_to(HEADER_BYTES)
        return True

    @property
    def has_overflowed(self) -> bool:
        """Whether one text was longer than all that `has_room` keeps free."""
        return self.tell() > SIZE_BYTES

    def split_overflow(self) -> tuple[int, bytes]:
        """Return up to where text lies here, and what has had no room.

        Nothing may be written here any more: the `BytesIO` has copied all to memory of this process.
        """
        assert isinstance(self._file, io.BytesIO)
        text, end = self._file.getbuffer()[self._offset :], max(self._words[_NUM_READ], self._first)
        while (there := os.pread(self.fd, READ_BYTES, end)) == text[end : end + READ_BYTES]:
            end += READ_BYTES
        end += next((n for n, byte in enumerate(there) if byte != text[end + n]), len(there))
        return end, bytes(text[end:])

    def text_writer(self) -> Callable[[str], int]:
        """Return what writes text here: a function of C that calls functions of C."""
        file: Any = type("_File", (_File,), {"__slots__": (), "write": self._file.write})()
        return io.TextIOWrapper(file, "utf-8", "replace", newline="\n", write_through=True).write


class _File:
    """The file of a `TextIOWrapper`: attributes of a class it finds most quickly."""

    __slots__ = ()
    closed = False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: what was written is there."""

    def close(self) -> None:
        """Do nothing: a stream that ends leaves the memory to its reader."""


class TextReader:
    """The reading end.

    Args:
        fd: the memory's descriptor; belongs to this from now on.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.at = HEADER_BYTES
        """Where the next text lies."""
        os.pwrite(fd, _WORD.pack(1), _IS_READY * _WORD.size)

    def lines(self) -> bytes:
        """Return whole lines that were written since; not all, if there are many."""
        if os.pread(self._fd, 1, self.at) in (b"\0", b""):
            return b""
        data = os.pread(self._fd, READ_BYTES, self.at)
        data, is_cut, _ = data.partition(b"\0")
        whole = _whole_lines(data)
        return self._taken(whole if is_cut else whole or data)

    def text(self, up_to: int) -> bytes:
        """Return what lies before a position; not all, if it's much; nothing if that was read."""
        data = os.pread(self._fd, max(0, min(up_to - self.at, READ_BYTES)), self.at)
        is_cut = self.at + len(data) < up_to
        return self._taken(_whole_lines(data) or data if is_cut else data)

    def rest(self) -> bytes:
        """Return what is there, when nobody writes any more; not all, if it's much."""
        data = os.pread(self._fd, READ_BYTES, self.at).rstrip(b"\0")
        is_cut = len(data) == READ_BYTES
        return self._taken(_whole_lines(data) or data if is_cut else data)

    def _taken(self, data: bytes) -> bytes:
        if data:
            self.at += len(data)
            os.pwrite(self._fd, _WORD.pack(self.at), _NUM_READ * _WORD.size)
        return data

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def _whole_lines(data: bytes) -> bytes:
    """Return text up to the end of its last line: who reads a part counts lines, and looks for secrets."""
    return data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
