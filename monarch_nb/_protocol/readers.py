"""Readers of msgpack, one for each type. msgspec takes a type apart when it meets it first, and runs Python
code meanwhile: another thread that meets the type, or one inside it, would use what isn't complete, and crash
this program. So it's done by one thread at a time; what is complete may be used by any.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

_lock = threading.RLock()  # a signal handler may read messages, too
_readers: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
"""To make one takes 25 us for a union."""


def reader_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the reader of a type. Call it before `msgspec.convert`, too, where several threads convert."""
    return _readers.get(kind) or _new_reader(kind)


def _new_reader(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _lock:
        found = _readers.get(kind)
        if found is None:
            found = _readers[kind] = msgspec.msgpack.Decoder(kind)
    return found
