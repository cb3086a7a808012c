"""Cuts messages between machines into frames of bounded size, so that an unknown peer at the port can't make
this process hold more memory than one such frame.

ZeroMQ bounds frames before it knows who sends them, and has one bound for strangers and for hosts. So a
message with a frame that is too long is cut: a head that says how many pieces each frame has, then the
pieces, all in one multipart message. A head begins with `HEAD`, a message with its version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from monarch_nb._wire.message import WireError

FRAME_BYTES = 1 << 18
"""Maximum size of a frame that ZeroMQ accepts from anybody."""
PIECE_BYTES = FRAME_BYTES - 1024
"""CURVE adds some bytes of its own."""
HEAD = b"\0"


def cut(frames: Sequence[Any]) -> Sequence[Any]:
    """Return frames none of which is too long; mostly as they are.

    >>> [len(p) for p in cut([b"x" * (2 * PIECE_BYTES + 1), b"y"])]
    [9, 261120, 261120, 1, 1]
    """
    for frame in frames:
        if len(frame) > PIECE_BYTES:
            break
    else:
        return frames
    pieces = [list(_pieces(memoryview(frame))) for frame in frames]
    head = HEAD + struct.pack(f"<{len(pieces)}I", *map(len, pieces))
    return [head, *(piece for each in pieces for piece in each)]


def _pieces(frame: memoryview) -> Iterator[memoryview]:
    for at in range(0, max(1, len(frame)), PIECE_BYTES):
        yield frame[at : at + PIECE_BYTES]


def join(parts: Sequence[Any]) -> Sequence[Any]:
    """Return the frames that `cut` was given.

    Raises:
        WireError: if pieces are missing.

    >>> join(cut([b"x" * 300_000, b"y"])) == [b"x" * 300_000, b"y"]
    True
    """
    if not parts or bytes(parts[0][:1]) != HEAD:
        return parts
    head = parts[0]
    counts = struct.unpack(f"<{(len(head) - 1) // 4}I", head[1:])
    if sum(counts) != len(parts) - 1:
        raise WireError(f"a message of {sum(counts)} pieces has come in {len(parts) - 1}")
    frames, at = [], 1
    for count in counts:
        frames.append(parts[at] if count == 1 else b"".join(parts[at : at + count]))
        at += count
    return frames
