"""Memory that is joined in huge pages."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

import pytest

from monarch_nb._rank import huge_pages
from monarch_nb._rank.huge_pages import HUGE_BYTES, STEP_BYTES, Region

MAPS = """\
55b57e603000-55b57ea00000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000500000 rw-p 00000000 00:00 0
7f0010000000-7f0010400000 r--p 00000000 00:00 0
7f0020000000-7f0020400000 rw-s 00000000 00:01 77                         /dev/shm/other
7f0030000000-7f0030400000 rw-p 00000000 08:01 78                         /usr/lib/libtorch.so (deleted)
7f0040000000-7f0040400000 rw-p 00000000 00:00 0                          [stack]
7f0050001000-7f0050200000 rw-p 00000000 00:00 0
"""


def test_private_memory_without_a_file_is_found_in_whole_pages() -> None:
    assert list(huge_pages.regions(MAPS)) == [
        Region(0x55B57E800000, 0x55B57EA00000),
        Region(0x7F0000000000, 0x7F0000400000),
    ]


def test_much_memory_comes_in_pieces() -> None:
    size = 2 * STEP_BYTES + HUGE_BYTES
    found = list(huge_pages.regions(f"7f0000000000-{0x7F0000000000 + size:x} rw-p 00000000 00:00 0"))
    assert [region.last - region.first for region in found] == [STEP_BYTES, STEP_BYTES, HUGE_BYTES]


def huge_bytes(address: int) -> int:
    """Return how much of the mapping around an address lies in huge pages."""
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)[1:]:
        first, last = (int(each, 16) for each in entry.split()[0].split("-"))
        if first <= address < last:
            found = re.search(r"AnonHugePages: +(\d+) kB", entry)
            return int(found[1]) << 10 if found else 0
    raise LookupError(f"{address:#x} is not mapped")


def test_memory_is_joined_and_keeps_its_bytes() -> None:
    memory = mmap.mmap(-1, 4 * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for i in range(0, len(memory), mmap.PAGESIZE):
        memory[i : i + 4] = i.to_bytes(4, "little")
    memory.madvise(mmap.MADV_HUGEPAGE)  # allows it; pages that are there stay as they are
    address = address_of(memory)
    first = -(-address // HUGE_BYTES) * HUGE_BYTES
    before = huge_bytes(address)
    if not huge_pages.join(Region(first, first + 2 * HUGE_BYTES)):
        pytest.skip(f"this kernel can't join memory in huge pages: {os.uname().release}")
    assert huge_bytes(address) >= before + 2 * HUGE_BYTES
    assert all(memory[i : i + 4] == i.to_bytes(4, "little") for i in range(0, len(memory), mmap.PAGESIZE))


def address_of(memory: mmap.mmap) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_what_is_not_mapped_is_not_joined() -> None:
    assert not huge_pages.join(Region(HUGE_BYTES, 2 * HUGE_BYTES))
