"""The checksum of the tcp path: fast enough to be always on.

The words of 8 bytes of a block are added up in 1008 lanes, each lane is multiplied by an odd number of its
own, and blocks are a polynomial in the order in which they come; all modulo 2^64. So every change within one
word is found, and any other one is missed with a chance of 2^-64. What changed places is found, but for words
of one block that are exactly a multiple of 8064 bytes apart: no page, cache line or segment is. It's no
signature: who wants to can forge it.

numpy does it at 20 to 50 GB/s in cache (10 to 25 from memory), in several threads at once; a plain sum of
words 15, zlib.crc32 2. The number of lanes is no power of two, so that rows don't fall on the same lines of
the cache.
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
    """Return an odd weight for each lane, scattered by the finalizer of splitmix64."""
    import numpy

    x = numpy.arange(1, LANES + 1, dtype="<u8") * numpy.uint64(_FACTOR)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)
    return x ^ (x >> numpy.uint64(31)) | numpy.uint64(1)


class Sum:
    """The checksum of a chunk, computed block by block while each is in the cache, and combined at the end.

    What is done for each block is kept short: after a block's worth of copying, Python's own memory is out of
    the cache.

    >>> summed = Sum(memoryview(bytes(3 * ROW_BYTES + 5)), block_rows=2)
    >>> [len(block) for block in summed.blocks]
    [16128, 8069]
    """

    __slots__ = ("_add", "_data", "_lanes", "_rows", "_sums", "blocks")

    def __init__(self, data: memoryview, block_rows: int) -> None:
        import numpy

        rows, step = len(data) // ROW_BYTES, block_rows * ROW_BYTES
        num = -(-rows // block_rows) or 1
        self._data = data
        self._rows = block_rows
        self._lanes = numpy.frombuffer(data, "<u8", rows * LANES).reshape(rows, LANES)
        self._sums: Any = numpy.empty((num, LANES), "<u8")
        self._add = numpy.add.reduce
        self.blocks = [data[at : at + step] for at in range(0, step * (num - 1), step)]
        """The chunk's bytes in blocks; the last one contains the rest of an incomplete row, too."""
        self.blocks.append(data[step * (num - 1) :])

    def add(self, block: int) -> None:
        """Add the block of index `block` to the checksum."""
        at = block * self._rows
        self._add(self._lanes[at : at + self._rows], 0, None, self._sums[block])

    def total(self, seed: int) -> int:
        """Return the checksum, after all blocks were added."""
        import numpy

        weights, total = _weights(), seed
        for found, block in zip(numpy.dot(self._sums, weights).tolist(), self.blocks, strict=True):
            total = (total * _FACTOR + found + len(block)) & MASK
        return total + _rest(self._data) & MASK


def summed_up(data: memoryview, seed: int) -> int:
    """Return the checksum of a chunk of one block: equal to that of `Sum`, but faster."""
    import numpy

    rows, found = len(data) // ROW_BYTES, 0
    if rows:
        lanes = numpy.frombuffer(data, "<u8", rows * LANES).reshape(rows, LANES)
        found = int(numpy.dot(numpy.add.reduce(lanes, axis=0), _weights()))
    return (seed * _FACTOR + found + len(data) + _rest(data)) & MASK


def _rest(data: memoryview) -> int:
    """Return the contribution of the bytes after the last whole row."""
    if not len(data) % ROW_BYTES:
        return 0
    import numpy

    at, end = len(data) // ROW_BYTES * ROW_BYTES, len(data) & ~7
    words = numpy.frombuffer(data, "<u8", (end - at) >> 3, at)
    return int(numpy.dot(words, _weights()[: len(words)])) + int.from_bytes(data[end:], "little")


def sealed(total: int, status: int) -> int:
    """Return the checksum of a chunk combined with its status word."""
    return ((total ^ status) * _FACTOR + status) & MASK
