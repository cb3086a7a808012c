"""Joins a process' memory in huge pages: a fork copies an entry of the page table for each page. With torch's
modules they are 60,000 (10 ms), or 120 huge ones (1 ms). What a fork writes to is copied in small pages
all the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

_MADV_COLLAPSE = 25  # since Linux 6.1, whatever the machine's setting for huge pages is
HUGE_BYTES = 1 << 21
STEP_BYTES = 16 * HUGE_BYTES
"""Bytes that are joined at once: about 0.1 s."""


class Region(NamedTuple):
    """Addresses of private memory without a file, whole huge pages: from the first to before the last."""

    first: int
    last: int


def regions(maps: str) -> Iterator[Region]:
    """Find what can be joined, in pieces of `STEP_BYTES` at most. `maps`: as /proc/PID/maps shows it.

    >>> list(regions("7f0000000000-7f0000500000 rw-p 00000000 00:00 0"))
    [Region(first=139637976727552, last=139637980921856)]
    """
    for line in maps.splitlines():
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if not access.startswith("rw-p") or inode != "0" or (name and name[0] != "[heap]"):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
        for piece in range(first, last, STEP_BYTES):
            yield Region(piece, min(piece + STEP_BYTES, last))


def join(region: Region) -> bool:
    """Join a region of this process' memory; False if the kernel can't: it's too old, or has no memory."""
    address, size = ctypes.c_void_p(region.first), ctypes.c_size_t(region.last - region.first)
    failed: int = ctypes.CDLL(None).madvise(address, size, _MADV_COLLAPSE)
    return not failed
