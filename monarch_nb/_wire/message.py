"""The message format: a fixed header, then name, context, buffer table and payload, in a single frame.

A single frame is sent by one C call, so a Ctrl-C between two Python bytecodes can never tear a message in
half. Only buffers that cross machines follow as frames of their own.

    offset  bytes  field
         0      1  version (VERSION)
         1      1  kind (Kind)
         2      2  flags
         4      4  slot: position of the receiver in the sending slice; in a reply, of the one who answers
         8      8  source proc
        16      8  destination proc
        24      8  ref: the number at the one who waits, under which an answer is expected (0: nobody waits)
        32      8  target: actor id (0: the rank itself)
        40      4  origin: the cell that caused this message, so that output finds its cell; in a reply: up to
                   which mark of its output the sender had come (`marks.SETTLED`), 0 if it had printed
                   nothing for that cell
        44      2  length of name (of a method; in a reply: the sender's segments that were dropped, 8 bytes
                   each; in COMBINED: who had printed something, and up to which mark, 12 bytes each)
        46      2  length of context
        48      2  number of buffers
        50      2  reserved, 0
        52         name, context, one table entry of ENTRY.size for each buffer, payload

All numbers are little-endian. Host processes route by the header and the table and never look into the
payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

VERSION: Final = 5
PIECE_START: Final = b"\0"
"""The first byte of a part of a message that is sent in pieces."""

HEADER = struct.Struct("<BBHIQQQQIHHHH")
ENTRY = struct.Struct("<IIQQQQ")
"""One buffer: its location (SHM or FRAME), descriptor, owner's pid, inode, offset, size in bytes."""

# Locations of a buffer's bytes.
SHM: Final = 1  #: in a segment that the source process holds open
FRAME: Final = 2  #: in a frame that follows

# Kinds. The numbers are the wire format: never reuse one.
CALL: Final = 1  #: run a method of an actor
REPLY: Final = 2  #: one value for the waiter of `ref`
FANOUT: Final = 3  #: to a host process: forward the enclosed message to these procs
COMBINED: Final = 4  #: from a host process: several replies to one call
RELEASE: Final = 5  #: the receiver has dropped a segment
CONTROL: Final = 6  #: a request to a host process or its answer; payload is msgpack (plus buffers)
EVENT: Final = 7  #: an event sent by a host process; payload is msgpack
OUTPUT: Final = 8  #: output of a rank
WAKE: Final = 9  #: to the process itself: wake up

# Flags.
ERROR: Final = 1  #: payload is a failure, not a value
EMPTY: Final = 2  #: no payload: no arguments, or None
KEEP: Final = 4  #: the result stays on the rank (rref)
END: Final = 8  #: the last message of a stream
BULK: Final = 16  #: the payload itself is the last buffer

RUN_ON: Final = "__run_on__"
"""A line for a rank's debugger that continues the thread and ends the prompt."""

CELL_SECONDS: Final = struct.Struct("<d")
"""Header of a rank's answer to a cell: its run time; JSON follows, or nothing if there is nothing to
report.
"""

SLOT_OFFSET = 4
DST_OFFSET = 16


class Message(NamedTuple):
    """A received message; `payload` begins at `at` in `frame`."""

    kind: int
    flags: int
    slot: int
    src: int
    dst: int
    ref: int
    target: int
    origin: int
    name: bytes
    context: bytes
    table: bytes
    frame: bytes
    at: int
    frames: Sequence[bytes] = ()

    @property
    def payload(self) -> memoryview:
        """The encoded value, not yet decoded."""
        return memoryview(self.frame)[self.at :]


_new = tuple.__new__  # the class's own constructor takes twice as long


class WireError(ValueError):
    """The error of a frame that is not a message of this version."""


def pack(
    kind: int,
    *,
    src: int,
    dst: int,
    flags: int = 0,
    slot: int = 0,
    ref: int = 0,
    target: int = 0,
    origin: int = 0,
    name: bytes = b"",
    context: bytes = b"",
    table: bytes = b"",
    payload: bytes = b"",
) -> bytes:
    """Return the frame of one message.

    >>> unpack(pack(CALL, src=1, dst=2, name=b"noop")).name
    b'noop'
    """
    header = HEADER.pack(
        VERSION, kind, flags, slot, src, dst, ref, target, origin,
        len(name), len(context), len(table) // ENTRY.size, 0,
    )  # fmt: skip
    return b"".join((header, name, context, table, payload))


def pack_plain(
    kind: int, flags: int, slot: int, src: int, dst: int, ref: int, target: int, origin: int,
    name: bytes, context: bytes, payload: bytes,
) -> bytes:  # fmt: skip
    """Return the bytes of a message without buffers, as `pack` does in three times the time: fields by
    position are quicker.

    >>> pack_plain(CALL, 0, 0, 1, 2, 0, 0, 0, b"noop", b"", b"") == pack(CALL, src=1, dst=2, name=b"noop")
    True
    """
    header = HEADER.pack(
        VERSION, kind, flags, slot, src, dst, ref, target, origin, len(name), len(context), 0, 0
    )
    return header + name + context + payload


_REPLY_FIELDS = struct.Struct("<2xHIQ8xQ8xI")
_REPLY_START = bytes((VERSION, REPLY))
_LENGTHS = slice(44, HEADER.size)
_NO_LENGTHS = bytes(HEADER.size - 44)


def plain_reply(frame: bytes) -> tuple[int, int, int, int, int] | None:
    """Return flags, slot, source, ref and origin of a REPLY without name, context and buffers, whose payload
    begins at `HEADER.size`; None for any other message. Most messages are such replies, and `unpack` takes
    four times as long.

    >>> plain_reply(pack(REPLY, src=7, dst=2, ref=3, slot=1))
    (0, 1, 7, 3, 0)
    """
    if frame[_LENGTHS] == _NO_LENGTHS and frame[:2] == _REPLY_START:
        return _REPLY_FIELDS.unpack_from(frame)
    return None


def is_piece(frame: bytes) -> bool:
    """Return whether this is a part of a message that was too long for one (`local_sockets`).

    >>> is_piece(pack(REPLY, src=7, dst=2))
    False
    """
    return frame[:1] == PIECE_START


def unpack(frame: bytes, frames: Sequence[bytes] = ()) -> Message:
    """Read the header of `frame`; the payload stays as it is.

    Raises:
        WireError: if the frame is too short or of another version.
    """
    try:
        version, kind, flags, slot, src, dst, ref, target, origin, n_name, n_context, n_buffers, _ = (
            HEADER.unpack_from(frame)
        )
    except struct.error:
        raise WireError(f"a frame of {len(frame)} bytes is no message") from None
    if version != VERSION:
        raise WireError(f"message of wire version {version}; this process speaks {VERSION}")
    a = HEADER.size
    b = a + n_name
    c = b + n_context
    d = c + n_buffers * ENTRY.size
    if d > len(frame):
        raise WireError(f"message of {len(frame)} bytes is cut off: its header announces {d}")
    return _new(Message, (
        kind, flags, slot, src, dst, ref, target, origin,
        frame[a:b], frame[b:c], frame[c:d], frame, d, frames,
    ))  # fmt: skip


_ADDRESS = struct.Struct("<4sI8sQ")


def addressing(frame: bytes) -> Callable[[int, int], bytes]:
    """Return a function of slot and destination that gives `frame` for that receiver: only these two change.

    >>> for_rank = addressing(pack(CALL, src=1, dst=0, name=b"noop"))
    >>> for_rank(3, 9) == pack(CALL, src=1, dst=9, slot=3, name=b"noop")
    True
    """
    start, source, rest = frame[:SLOT_OFFSET], frame[SLOT_OFFSET + 4 : DST_OFFSET], frame[DST_OFFSET + 8 :]
    pack_address = _ADDRESS.pack
    return lambda slot, dst: pack_address(start, slot, source, dst) + rest


def readdress(frame: bytes, slot: int, dst: int) -> bytes:
    """Return the same message for another receiver: only slot and destination change."""
    return addressing(frame)(slot, dst)


_COUNT = struct.Struct("<I")
_TARGET = struct.Struct("<QI")
_ANSWER = struct.Struct("<HII")


_SRC = struct.Struct("<Q")
_SRC_AT = 8


def sources(frame: bytes | memoryview) -> tuple[int, ...]:
    """Return in whose name a frame speaks: its sender, and the sender of the message that a FANOUT encloses.

    Raises:
        WireError: if it's cut off.

    >>> sources(pack(CALL, src=7, dst=2)), sources(pack_fanout(7, 0, [(1, 0)], pack(CALL, src=9, dst=1)))
    ((7,), (7, 9))
    """
    if len(frame) < HEADER.size:
        raise WireError(f"frame of {len(frame)} bytes is shorter than a header")
    (src,) = _SRC.unpack_from(frame, _SRC_AT)
    if frame[1] != FANOUT:
        return (src,)
    _, inner = unpack_fanout(unpack(bytes(frame)))
    return src, *sources(inner)


def pack_fanout(src: int, host_proc: int, receivers: Sequence[tuple[int, int]], inner: bytes) -> bytes:
    """Return one message to a host process that stands for `inner` to each `(proc, slot)` there."""
    body = b"".join([_COUNT.pack(len(receivers)), *(_TARGET.pack(p, s) for p, s in receivers), inner])
    return pack(FANOUT, src=src, dst=host_proc, payload=body)


def unpack_fanout(message: Message) -> tuple[list[tuple[int, int]], bytes]:
    """Return the receivers and the enclosed frame of a FANOUT message."""
    frame, at = message.frame, message.at
    try:
        (count,) = _COUNT.unpack_from(frame, at)
        start = at + _COUNT.size
        end = start + count * _TARGET.size
        return [(p, s) for p, s in _TARGET.iter_unpack(frame[start:end])], _enclosed(frame, end)
    except struct.error:
        raise WireError(f"FANOUT of {len(frame)} bytes is cut off in its receivers") from None


def _enclosed(frame: bytes, at: int) -> bytes:
    if at >= len(frame):
        raise WireError(f"FANOUT of {len(frame)} bytes is cut off: it encloses no message")
    return frame[at:]


class Answer(NamedTuple):
    """One distinct answer to a call, with the slots that gave it."""

    flags: int
    slots: tuple[int, ...]
    payload: bytes


MAX_MARKS: Final = 5000
"""How many marks fit into one COMBINED."""
_MARK = struct.Struct("<QI")


def pack_combined(
    src: int, dst: int, ref: int, answers: Sequence[Answer], marks: Sequence[tuple[int, int]] = ()
) -> bytes:
    """Return one message that carries all `answers` of a host to one call.

    Args:
        marks: processes that had printed something before they answered, and up to which mark each.
    """
    name = b"".join(_MARK.pack(proc, mark) for proc, mark in marks)
    parts = [_COUNT.pack(len(answers))]
    for flags, slots, payload in answers:
        parts.append(_ANSWER.pack(flags, len(slots), len(payload)) + struct.pack(f"<{len(slots)}I", *slots))
        parts.append(payload)
    return pack(COMBINED, src=src, dst=dst, ref=ref, name=name, payload=b"".join(parts))


def combined_marks(message: Message) -> list[tuple[int, int]]:
    """Return which processes had printed something before they gave the answers in a COMBINED message.

    Raises:
        WireError: if it's cut off.

    >>> combined_marks(unpack(pack_combined(1, 2, 3, [], [(7, 2)])))
    [(7, 2)]
    """
    try:
        return [(proc, mark) for proc, mark in _MARK.iter_unpack(message.name)]
    except struct.error:
        raise WireError(f"COMBINED has {len(message.name)} bytes of marks, 12 each were expected") from None


def unpack_combined(message: Message) -> list[Answer]:
    """Return the distinct answers in a COMBINED message."""
    frame, at = message.frame, message.at
    answers = []
    try:
        (count,) = _COUNT.unpack_from(frame, at)
        at += _COUNT.size
        for _ in range(count):
            flags, n_slots, n_bytes = _ANSWER.unpack_from(frame, at)
            slots = struct.unpack_from(f"<{n_slots}I", frame, at + _ANSWER.size)
            start = at + _ANSWER.size + 4 * n_slots
            at = start + n_bytes
            answers.append(Answer(flags, slots, frame[start:at]))
    except struct.error:
        raise WireError(f"COMBINED of {len(frame)} bytes is cut off after {len(answers)} answers") from None
    if at > len(frame):
        raise WireError(f"COMBINED of {len(frame)} bytes is cut off: it announces {at}")
    return answers
