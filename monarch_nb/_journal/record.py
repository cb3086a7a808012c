"""A piece of output, in the format of the disk and of messages to watchers.

    offset  bytes  field
         0      4  number of bytes of data
         4      1  kind (TEXT, DISPLAY, NOTE, GROUP, RESULT; SETTLED and LEFT_OUT travel only)
         5      1  stream: 0 stdout, 1 stderr
         6      2  index of the group of ranks, in the order in which the journal met them
         8      4  rank
        12      4  origin: what caused it (see `is_cell`)
        16      8  sequence number within the journal, from 1
        24      8  time, seconds since the epoch
        32         data

All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("<IBBHIIQd")

TEXT: Final = 1  #: bytes that a rank wrote
DISPLAY: Final = 2  #: a rich display, as JSON
NOTE: Final = 3  #: a message of the host process itself, such as that something was dropped
GROUP: Final = 4  #: the name of a group; stands before its first record in each file
RESULT: Final = 5  #: how a cell ended on a rank, as JSON
# : a rank's output has come as far as one of its answers; data: MARK of its proc and the number in the answer
SETTLED: Final = 6
LEFT_OUT: Final = 7  #: lines that a watcher isn't sent, since it didn't keep up; data: NUMBER of them

MARK: Final = struct.Struct("<QI")
NUMBER: Final = struct.Struct("<Q")

STREAMS: Final = ("stdout", "stderr")
CLIENT_ORIGIN: Final = 1 << 31
"""Origins from here on are calls of a client's notebook cell; those below are cells of the mesh; 0 is
neither.
"""
CLIENT_BITS: Final = 16
"""Number of bits: the lower bits of a client's origin are the number of its cell, the higher ones identify
the client.
"""
CLIENT_MASK: Final = 0x7FFF


class Record(NamedTuple):
    """One piece of output."""

    kind: int
    stream: str
    group: int
    rank: int
    origin: int
    seq: int
    when: float
    data: bytes


def is_cell(origin: int) -> bool:
    """Say whether `origin` is the number of a cell of the mesh."""
    return 0 < origin < CLIENT_ORIGIN


def client_origin(client: int, count: int) -> int:
    """Return the origin of a client's `count`-th cell."""
    return CLIENT_ORIGIN | (client & CLIENT_MASK) << CLIENT_BITS | (count & ((1 << CLIENT_BITS) - 1))


def pack(record: Record) -> bytes:
    """Return a record's bytes.

    >>> next(unpack(pack(Record(TEXT, "stdout", 0, 3, 7, 1, 0.0, b"hi")))).data
    b'hi'
    """
    r = record
    stream = 1 if r.stream == "stderr" else 0
    return HEADER.pack(len(r.data), r.kind, stream, r.group, r.rank, r.origin, r.seq, r.when) + r.data


def unpack(data: bytes | memoryview) -> Iterator[Record]:
    """Yield the records in `data`; an incomplete one at the end is left out."""
    at, end = 0, len(data)
    while at + HEADER.size <= end:
        size, kind, stream, group, rank, origin, seq, when = HEADER.unpack_from(data, at)
        start = at + HEADER.size
        at = start + size
        if at > end:
            return
        yield Record(kind, STREAMS[stream], group, rank, origin, seq, when, bytes(data[start:at]))
