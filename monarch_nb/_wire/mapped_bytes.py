"""Receives long bytes without a copy: `bytes` objects whose data are the pages of the sender's segment.

CPython has no call that makes a `bytes` of memory that's there already, and a copy takes as long as the whole
way. So the object's header is written in front of the mapped pages. Such an object isn't on the interpreter's
heap, which must never free it: this module counts as one holder for as long as the object exists, so that the
interpreter never sees the last one go. When no other holder is left, the pages are unmapped, and the sender
may use its segment again. That's looked at after each call or cell (`Transport.settle`), and every `LOOK_S`.

As with arrays, the pages are mapped copy-on-write, and the segment is the receiver's until it has dropped
them. Where objects may be laid out or counted otherwise (versions that this hasn't been tried with, debug
builds, no interpreter lock, not CPython), there are no such bytes: they are copied.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import sysconfig
import threading
from typing import Final, NamedTuple

from monarch_nb._wire.segment import Mapping, SegmentError, address_of

LOOK_S: Final = 5.0
"""Interval at which an idle process checks whether such bytes were dropped, as long as it has any."""
MAX_LENT: Final = 256
"""Maximum number at a time, since all are checked after each call; further ones are copied."""
TRIED: Final = ((3, 11), (3, 12), (3, 13))
"""The versions of CPython that this has been tried with (`tests/unit/test_mapped_bytes.py`)."""
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_FAILED: Final = ctypes.c_void_p(-1).value
_READ_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE


class _Header(ctypes.Structure):
    """The fields before the data of a `bytes`."""

    _fields_ = (
        ("holders", ctypes.c_ssize_t),
        ("kind", ctypes.c_void_p),
        ("size", ctypes.c_ssize_t),
        ("hash", ctypes.c_ssize_t),
    )


class _Lent(NamedTuple):
    """A `bytes` object whose data are a mapped segment: its mapping, and a view of the source, which keeps
    the segment.
    """

    start: int
    length: int
    header: _Header
    view: memoryview


_lent: list[_Lent] = []
_of_parents: list[list[_Lent]] = []
"""Objects inherited from the process that this one was forked from: never given back here."""
_lock = threading.Lock()


def bytes_over(view: memoryview) -> bytes | None:
    """Return bytes whose data are those of `view`, uncopied; None where that can't be done.

    Args:
        view: of a segment's mapping, one page's multiple from its start.
    """
    mapping = view.obj
    if not isinstance(mapping, Mapping) or not view.nbytes or not is_layout_known():
        return None
    offset = address_of(view) - address_of(memoryview(mapping))
    if offset % mmap.PAGESIZE or len(_lent) >= MAX_LENT:
        return None
    try:
        fd = mapping.open_file()
    except SegmentError:
        return None
    try:
        start, length = _map(fd, offset, view.nbytes)
    except OSError:
        return None
    finally:
        os.close(fd)
    header = _Header.from_address(start + mmap.PAGESIZE - ctypes.sizeof(_Header))
    header.holders, header.kind, header.size, header.hash = 1, id(bytes), view.nbytes, -1
    found = ctypes.cast(ctypes.addressof(header), ctypes.py_object).value
    with _lock:
        _lent.append(_Lent(start, length, header, view))
    assert type(found) is bytes
    return found


def give_back() -> float | None:
    """Unmap the bytes that are no longer referenced; return the seconds until the next look, None if there
    are none left.
    """
    if not _lent:
        return None
    with _lock:
        gone = [each for each in _lent if each.header.holders == 1]
        if gone:
            _lent[:] = [each for each in _lent if each.header.holders != 1]
    for each in gone:
        _LIBC.munmap(each.start, each.length)
    return LOOK_S if _lent else None


@functools.cache
def is_layout_known() -> bool:
    """Return whether this interpreter lays `bytes` out as this module does."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in TRIED:
        return False
    if hasattr(sys, "gettotalrefcount"):  # a debug build
        return False
    if sysconfig.get_config_var("Py_GIL_DISABLED") or ctypes.sizeof(_Header) != bytes.__basicsize__ - 1:
        return False
    sample = bytes(range(1, 8))
    header = _Header.from_address(id(sample))
    found = (header.kind, header.size, header.hash, 0 < header.holders < 10)
    data = ctypes.string_at(id(sample) + ctypes.sizeof(_Header), len(sample) + 1)
    return found == (id(bytes), len(sample), -1, True) and data == sample + b"\0"


def _map(fd: int, offset: int, nbytes: int) -> tuple[int, int]:
    """Map a part of a file behind a page of our own, with a NUL after it; return where, and how long it is.

    Raises:
        OSError: if it can't be mapped.
    """
    length = mmap.PAGESIZE + (nbytes // mmap.PAGESIZE + 1) * mmap.PAGESIZE
    kind = mmap.MAP_PRIVATE | _MAP_NORESERVE
    start = _mmap(0, length, kind | mmap.MAP_ANONYMOUS, -1, 0)
    data = start + mmap.PAGESIZE
    try:
        _mmap(data, nbytes, kind | _MAP_FIXED, fd, offset)
    except OSError:
        _LIBC.munmap(start, length)
        raise
    if nbytes % mmap.PAGESIZE:  # else it's the first byte of a page of zeros
        ctypes.memset(data + nbytes, 0, 1)
    return start, length


def _mmap(address: int, length: int, flags: int, fd: int, offset: int) -> int:
    found: int | None = _LIBC.mmap(address, length, _READ_WRITE, flags, fd, offset)
    if found is None or found == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return found


def _begin_anew() -> None:
    """Leave objects inherited by a forked process as they are: the parent holds their segments."""
    global _lent, _lock
    _of_parents.append(_lent)
    _lent, _lock = [], threading.Lock()


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t,
)  # fmt: skip
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
os.register_at_fork(after_in_child=_begin_anew)
