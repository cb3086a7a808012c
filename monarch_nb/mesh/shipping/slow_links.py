"""Decides, by how fast the first contents arrive, whether hosts ask their package index for what they still
lack, or get it from here. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST_BYTES = 64 << 20
"""What is sent before the link counts as measured: enough to keep all buffers busy for a while."""
LONG_S = 30.0
"""What takes less time over the link isn't asked for elsewhere."""


def first_of(sizes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return contents of `limit` bytes at most, large ones first: small ones would measure files, not bytes.

    >>> first_of({"a": 5, "b": 3, "c": 1}, 4)
    {'b': 3, 'c': 1}
    """
    found: dict[str, int] = {}
    room = limit
    for sha256, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        if size <= room:
            found[sha256] = size
            room -= size
    return found


def index_limit_s(sent_bytes: int, seconds: float, left_bytes: int) -> float:
    """Return for how long hosts may ask their package index; 0 if the link is fast enough.

    Half of the time that the rest would take over the link: an index that has nothing costs half as much
    again, at worst.

    Args:
        sent_bytes, seconds: what has been sent so far, and in which time.
        left_bytes: what hosts still lack.

    >>> index_limit_s(64 << 20, 0.5, 1 << 30), index_limit_s(64 << 20, 8.0, 1 << 30)
    (0.0, 64.0)
    """
    if not sent_bytes:
        return 0.0
    left_s = seconds * left_bytes / sent_bytes
    return left_s / 2 if left_s > LONG_S else 0.0
