"""Sends long `bytes` and `bytearray` beside the message, as arrays are sent.

Pickle writes them into its stream, which costs a copy into fresh pages on this side and one on the other; no
reducer is asked about them. `persistent_id` is, so a pickler with that (`codec`) puts a `Beside` in their
place. It's asked about each object, so only messages that hold long bytes are pickled by it.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import pickle
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from monarch_nb._wire import mapped_bytes
from monarch_nb._wire.segment import MIN_BYTES, address_of, copy_bytes

_MAX_SEARCHED: Final = 128
"""Maximum number of a message's values that are examined."""
_MADV_HUGEPAGE: Final = 14
_HUGE_PAGE: Final = 2 << 20


def is_long(value: object) -> bool:
    """Return whether `value` is bytes that travel beside the message."""
    return type(value) in (bytes, bytearray) and len(value) >= MIN_BYTES  # type: ignore[arg-type]


def holds_long_bytes(value: object) -> bool:
    """Return whether there are long bytes among the first values of nested dicts, lists and tuples."""
    queue = [value]
    for each in queue:  # the list grows meanwhile
        if is_long(each):
            return True
        if type(each) is dict:
            queue.extend(islice(each.values(), _MAX_SEARCHED - len(queue)))
        elif type(each) in (list, tuple):
            queue.extend(islice(each, _MAX_SEARCHED - len(queue)))  # type: ignore[call-overload]
    return False


class Beside:
    """A placeholder for long bytes in a message; loading it returns the bytes themselves."""

    def __init__(self, value: bytes | bytearray) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (type(self.value) is bytes, pickle.PickleBuffer(self.value))


class Unpickler(pickle.Unpickler):
    """The unpickler of messages that contain `Beside`."""

    def persistent_load(self, pid: Any) -> Any:
        return pid


def loads(payload: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Return the value of a message that holds long bytes."""
    return Unpickler(io.BytesIO(payload), buffers=buffers).load()


def _rebuild(is_bytes: bool, buffer: Any) -> bytes | bytearray:
    """Return the bytes mapped in place, or copied once, without the interpreter lock."""
    view = memoryview(buffer).cast("B")
    there = mapped_bytes.bytes_over(view) if is_bytes else None
    if there is not None:
        return there
    make = _NEW_BYTES if is_bytes else _NEW_BYTEARRAY
    found: bytes | bytearray = make(None, view.nbytes)
    address = address_of(memoryview(found))
    _ask_for_huge_pages(address, view.nbytes)
    copy_bytes(address, view)
    return found


def _ask_for_huge_pages(address: int, nbytes: int) -> None:
    """Have fresh memory come in huge pages where the kernel does so on request: most of the time of such a
    copy is faults. Refused, it's as slow as without.
    """
    start = -(-address // _HUGE_PAGE) * _HUGE_PAGE
    whole = (address + nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole >= _HUGE_PAGE:
        _MADVISE(start, whole, _MADV_HUGEPAGE)


def _allocator(name: str) -> Callable[..., Any]:
    """Return the C API's function that makes an object of so many bytes without filling it."""
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)((name, ctypes.pythonapi))


_NEW_BYTES = _allocator("PyBytes_FromStringAndSize")
_NEW_BYTEARRAY = _allocator("PyByteArray_FromStringAndSize")
_MADVISE = ctypes.CDLL(None).madvise
_MADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
