"""Byte code that is independent of its source's installation time. Pure.

The header of a `.pyc` (PEP 552) is 16 bytes, little endian: 4 of magic number, 4 of flags, then, if flags are
0, the source's modification time and size modulo 2**32. All files of a store have one time, so that is what
valid byte code is given.
"""

from __future__ import annotations

import struct

PINNED_S = 946_684_800
"""Modification time of all files of a store: 2000-01-01, in seconds since 1970."""
HEADER_BYTES = 16
_MASK = 0xFFFF_FFFF


def is_current(header: bytes, mtime_s: int, size: int) -> bool:
    """Say whether byte code is what its source says now; `header`: at least its first 16 bytes.

    >>> is_current(bytes(8) + struct.pack("<II", 7, 3), mtime_s=7, size=3)
    True
    """
    if len(header) < HEADER_BYTES:
        return False
    flags, found_s, found_size = struct.unpack_from("<III", header, 4)
    if flags:  # valid by the source's hash, or unchecked: time doesn't matter
        return True
    return bool(found_s == mtime_s & _MASK and found_size == size & _MASK)


def normalised(content: bytes) -> bytes:
    """Return byte code with the pinned time in its header; what is valid by a hash stays as it is.

    >>> normalised(bytes(16))[8:12] == struct.pack("<I", PINNED_S)
    True
    """
    if len(content) < HEADER_BYTES or content[4:8] != bytes(4):
        return content
    return content[:8] + struct.pack("<I", PINNED_S) + content[12:]


def source_of(path: str) -> str | None:
    """Return the path of the source that byte code belongs to; None if it's of no source beside it.

    >>> source_of("a/__pycache__/b.cpython-311.pyc"), source_of("a/b.pyc")
    ('a/b.py', None)
    """
    folder, _, name = path.rpartition("/")
    above, _, last = folder.rpartition("/")
    if last != "__pycache__" or name.count(".") < 2:
        return None
    return f"{above}/{name.split('.')[0]}.py" if above else f"{name.split('.')[0]}.py"
