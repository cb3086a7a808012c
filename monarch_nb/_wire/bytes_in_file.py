"""A `BytesIO` whose bytes are pages of a file: what is written to it is in the file, without a system call.

`mmap.write` does the same, but Python hands its argument over in a tuple, which is made, parsed and freed
again: of 550 ns that a printed line takes it costs 120 more than `BytesIO.write`.

The pages of the bytes that a `BytesIO` holds are replaced by the file's (`MAP_FIXED`). That relies on where
CPython keeps the bytes, so it's tried once, before anything is written; whoever asks uses `mmap` where it
doesn't work.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import tracemalloc
from typing import NamedTuple

_MAP_FIXED = 0x10
"""On x86 and ARM; elsewhere the pages come to lie at another place, which is noticed."""
_PROBE = b"monarch_nb"
_kept: list[io.BytesIO] = []
"""All of them, for good: memory of a file that is given back might become somebody else's."""


class BytesInFile(NamedTuple):
    """Attributes:
    file: what to write to.
    offset: where the first byte of the file lies in it, in bytes.
    """

    file: io.BytesIO
    offset: int


def open_bytes(fd: int, size: int) -> BytesInFile | None:
    """Return the first `size` bytes of a file, which are NUL; None if they can't be had so.

    Args:
        size: in bytes, whole pages.

    Example:
        found = open_bytes(fd, 1 << 20)
        found.file.seek(found.offset)
        found.file.write(b"seen by whoever reads the file")
    """
    if tracemalloc.is_tracing():  # whoever looks for much memory would find this
        return None
    try:
        text = bytes(size + mmap.PAGESIZE)  # nobody touches it: it takes no memory
    except MemoryError:
        return None
    address = id(text) + bytes.__basicsize__ - 1
    offset = -address % mmap.PAGESIZE
    file = io.BytesIO(text)
    del text  # were there somebody else who has it, it would be copied at the first write
    _kept.append(file)
    if not _map(fd, address + offset, size):
        return None
    file.seek(offset)
    file.write(_PROBE)
    if os.pread(fd, len(_PROBE), 0) != _PROBE:
        return None
    os.pwrite(fd, bytes(len(_PROBE)), 0)
    return BytesInFile(file, offset)


def _map(fd: int, address: int, size: int) -> bool:
    """Put a file's pages at an address; return whether they are there."""
    try:
        function = ctypes.CDLL(None).mmap
    except (OSError, AttributeError):
        return False
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    access, how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    return bool(function(address, size, access, how, fd, 0) == address)
