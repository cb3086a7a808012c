"""The checksum of the tcp path: fast enough to be always on.

The words of 8 bytes of a block are added up in 1008 lanes, each lane is multiplied by an odd number of its own, and blocks are a polynomial in
the order in which they come; all modulo 2^64. So every change within one word is found, and any other one is missed with a chance of 2^-64.
What changed places is found, but for words of one block that are exactly a multiple of 8064 bytes apart: no page, cache line or segment is. It's
no signature: who wants to can forge it.

numpy does it at 20 to 50 GB/s in cache (10 to 25 from memory), in several threads at once; a plain sum of words 15, zlib.crc32 2. The number of
lanes is no power of two, so that rows don't fall on the same lines of the cache.
"""

from __future__ import annotations

import functools
from typing import Any

LANES = 1008
ROW_BYTES = 8 * LANES
MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15


@functools.cache
def _weights() -> Any:
    """Return an odd number for each lane; they're scattered by the finalizer of splitmix64."""
    import numpy

    x = numpy.arange(1, LANES + 1, dtype="<u8") * numpy.uint64(_FACTOR)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)
    return x ^ (x >> numpy.uint64(31)) | numpy.uint64(1)


def folded(total: int, block: memoryview) -> int:
    """Return the checksum of what came before and this block."""
    import numpy

    num, found = len(block) >> 3, 0
    words, weights = numpy.frombuffer(block, "<u8", num), _weights()
    rows = num // LANES
    if rows:
        lanes = words[: rows * LANES].reshape(rows, LANES)
        found = int(numpy.dot(numpy.add.reduce(lanes, axis=0), weights))
    if len(block) > rows * LANES * 8:
        rest = words[rows * LANES :]
        found += int(numpy.dot(rest, weights[: len(rest)])) + int.from_bytes(block[num << 3 :], "little")
    return (total * _FACTOR + found + len(block)) & MASK


def sealed(total: int, status: int) -> int:
    """Return the checksum with the word on how it went."""
    return ((total ^ status) * _FACTOR + status) & MASK
