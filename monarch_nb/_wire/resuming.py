"""A link that outlives its connections: each side numbers its messages, keeps them until the other side has
said that it has them, and sends the rest again on the next connection. Pure.

::

    number (8 bytes, little-endian)   message: the frames that follow
    nothing (0 bytes)                 a note between the two ends, such as "I have the first 7"; not repeated
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

_NUMBER = struct.Struct("<Q")
NOTE = b""
"""The first frame of what isn't numbered."""
AWAY_S = 600.0
"""How long a connection may be lost before both sides give the link up."""
MAX_KEPT_BYTES = 256 << 20
"""How much a side keeps for the other one meanwhile."""
CONFIRM_BYTES = 1 << 20
"""After so many bytes the other side is told what has arrived, so that it needn't keep it."""


class Resumable:
    """One end of such a link.

    Attributes:
        num_taken: messages of the other side that have arrived here.
        kept_bytes: bytes of messages that the other side may not have yet.

    Example:
        >>> here, there = Resumable(), Resumable()
        >>> here.send([b"a"]) is None  # no connection: it's kept
        True
        >>> [there.takes(frames[0]) for frames in here.resumed(there.num_taken)]
        [True]
        >>> here.confirmed(there.num_taken)
        >>> here.kept_bytes
        0
    """

    def __init__(self) -> None:
        self.num_taken = 0
        self.kept_bytes = 0
        self._num_sent = 0
        self._kept: deque[list[bytes]] = deque()
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether there's a connection on which the other side has said what it has."""
        return self._is_open

    def send(self, frames: Sequence[Any]) -> list[bytes] | None:
        """Keep a message; return its frames to be sent now, or None if they are to wait."""
        self._num_sent += 1
        numbered = [_NUMBER.pack(self._num_sent), *map(bytes, frames)]
        self._kept.append(numbered)
        self.kept_bytes += sum(map(len, numbered))
        return numbered if self._is_open else None

    def takes(self, prefix: bytes) -> bool:
        """Say whether a message that has arrived is the next one; others have come before, or come again.

        Args:
            prefix: its first frame.

        Raises:
            ValueError: if that's no number.
        """
        if len(prefix) != _NUMBER.size:
            raise ValueError(f"a number of {len(prefix)} bytes")
        if _NUMBER.unpack(prefix)[0] != self.num_taken + 1:
            return False
        self.num_taken += 1
        return True

    def confirmed(self, num_taken: int) -> None:
        """Forget messages that the other side has."""
        first = self._num_sent - len(self._kept) + 1
        for _ in range(max(0, min(num_taken, self._num_sent) - first + 1)):
            self.kept_bytes -= sum(map(len, self._kept.popleft()))

    def resumed(self, num_taken: int) -> list[list[bytes]]:
        """Take note of what the other side has. If the link isn't open, open it, and return what the other
        side lacks, in order: it must be sent before anything else.
        """
        self.confirmed(num_taken)
        if self._is_open:
            return []
        self._is_open = True
        return list(self._kept)

    def broken(self) -> None:
        """Keep what is sent from now on: the connection has ended."""
        self._is_open = False
