"""Big buffers on one machine: written once into anonymous shared memory, mapped copy-on-write by each
receiver.

A segment is a memfd: it has no name in any file system, so nothing can be left behind: the kernel frees it
when the last descriptor and mapping are gone, whoever was killed. The receiver opens `/proc/<owner's
pid>/fd/<n>`, which the kernel allows to processes of the same user, checks the inode, and maps it privately:
it may write, and nobody else will see it.

The owner keeps the descriptor until every receiver has released the segment (or died) and then uses its warm
pages for the next message: a copy into fresh pages is three times slower than into warm ones. Free segments
are given back after `IDLE_S`.

Accounting is by `(segment id, receiver proc)`. All methods may be called from any thread.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import mmap
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from monarch_nb._tracebacks import ShowsItself
from monarch_nb._wire.message import ENTRY, SHM

MIN_BYTES = 1 << 17
"""Buffers from this size on travel outside of messages, while this process has few segments: below it, copies
through the kernel are cheaper than mapping.
"""
MIN_OF_MANY_BYTES = 1 << 20
"""The same while it has `FEW` segments or more: each takes two descriptors here, and a mapping wherever the
value is kept. A process often may have 1,024 and 65,530 of these.
"""
FEW = 256

ALIGN = 4096
IDLE_S = 5.0
MAX_FREE_BYTES = 1 << 30
MAX_COPY_THREADS = 4
BYTES_PER_COPY_THREAD = 8 << 20
COPY_TRIES, COPIES_PER_TRY = 3, 50
"""Each number of threads is tried so often at first, and the worse one again so often."""
COST_GROWTH = 1.05
"""Factor by which the least cost grows with each copy, for what else the machine does changes."""


class SegmentError(RuntimeError):
    """The error of a segment that could not be opened: its owner is gone, or it has been replaced."""


class OwnerGone(SegmentError):
    """The error of a segment whose owner is gone."""


def reserve(fd: int, nbytes: int) -> None:
    """Give a file in memory its size.

    Where the kernel keeps count of promised memory (`vm.overcommit_memory=2`), a page that can't be had when
    it's touched is a SIGBUS: there, all are had now. Elsewhere memory is had page by page, by several
    threads, while it's filled.

    Raises:
        OSError: if there isn't as much.
    """
    if _promises_are_kept():
        os.posix_fallocate(fd, 0, nbytes)
    else:
        os.ftruncate(fd, nbytes)


@functools.cache
def _promises_are_kept() -> bool:
    with suppress(OSError), open("/proc/sys/vm/overcommit_memory", "rb") as file:
        return file.read().strip() == b"2"
    return False


class SharedMemoryError(ShowsItself, MemoryError):
    """The machine has no room for a value that is to be moved, or a limit forbids it."""

    @classmethod
    def of(cls, num_bytes: int, error: OSError | ValueError) -> SharedMemoryError:
        """Return the error about memory that the system has refused."""
        reason = getattr(error, "strerror", None) or error
        advice = "Free memory on that machine, or move less at once"
        return cls(f"no {num_bytes:,} bytes of shared memory: {reason}. {advice}")


def min_bytes() -> int:
    """Return the number of bytes from which on a buffer travels outside of its message at present."""
    if Segment.num_open >= _max_open():
        return sys.maxsize
    return MIN_BYTES if Segment.num_open < FEW else MIN_OF_MANY_BYTES


@functools.cache
def _max_open() -> int:
    """Return how many segments this process may have: they take half of its descriptors."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4


class Segment:
    """A memfd of this process, with the receivers that still hold it."""

    __slots__ = ("capacity", "fd", "holders", "inode", "key", "map", "since")

    num_open = 0
    """Number of segments of this process."""

    def __init__(self, key: int, capacity: int) -> None:
        self.key = key
        self.capacity = capacity
        self.fd = -1
        try:
            self.fd = os.memfd_create("monarch_nb", os.MFD_CLOEXEC)
            reserve(self.fd, capacity)
            self.map = mmap.mmap(self.fd, capacity)
        except (OSError, ValueError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise SharedMemoryError.of(capacity, error) from None
        Segment.num_open += 1
        self.inode = os.fstat(self.fd).st_ino
        self.holders: set[int] = set()
        self.since = 0.0

    def close(self) -> None:
        """Free the memory, as far as this process holds it; mapped views keep their part until they are
        dropped.
        """
        with suppress(BufferError):
            self.map.close()
        os.close(self.fd)
        Segment.num_open -= 1


class SegmentPool:
    """All segments that this process owns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys = itertools.count(1)
        self._used: dict[int, Segment] = {}
        self._free: list[Segment] = []

    def write(self, buffers: Sequence[memoryview], receivers: Iterable[int]) -> bytes:
        """Copy `buffers` into one segment held by `receivers`; return the table entries for the message.

        Raises:
            SharedMemoryError: if there's no memory for them.
        """
        offsets, total = [], 0
        for buffer in buffers:
            offsets.append(total)
            total += -(-buffer.nbytes // ALIGN) * ALIGN
        segment = self.acquire_segment(total, set(receivers))
        base = ctypes.addressof(ctypes.c_char.from_buffer(segment.map))
        entries = []
        for buffer, offset in zip(buffers, offsets, strict=True):
            copy_bytes(base + offset, buffer)
            entries.append(ENTRY.pack(SHM, segment.fd, os.getpid(), segment.inode, offset, buffer.nbytes))
        return b"".join(entries)

    def acquire_segment(self, total: int, holders: set[int]) -> Segment:
        """Return a segment of at least `total` bytes that `holders` will map; what was in it before is
        still there.
        """
        with self._lock:
            fitting = [s for s in self._free if total <= s.capacity <= 4 * total]
            if fitting:
                # Among equal ones the one used last: its pages are most likely in the cache.
                segment = min(reversed(fitting), key=lambda s: s.capacity)
                self._free.remove(segment)
            else:
                segment = Segment(next(self._keys), total)
            segment.holders = holders
            self._used[segment.inode] = segment
            return segment

    def release(self, inode: int, holder: int) -> None:
        """Record that `holder` has dropped the segment `inode`."""
        with self._lock:
            segment = self._used.get(inode)
            if segment is not None:
                segment.holders.discard(holder)
                self._retire_if_free(segment)

    def forget(self, holder: int) -> None:
        """Record that process `holder` is gone, with all that it held."""
        with self._lock:
            for segment in list(self._used.values()):
                segment.holders.discard(holder)
                self._retire_if_free(segment)

    def _retire_if_free(self, segment: Segment) -> None:
        if segment.holders:
            return
        del self._used[segment.inode]
        segment.since = time.monotonic()
        self._free.append(segment)
        while sum(s.capacity for s in self._free) > MAX_FREE_BYTES:
            self._free.pop(0).close()

    def trim(self, idle_s: float = IDLE_S) -> float | None:
        """Free segments unused for `idle_s`; return the seconds until the next is due, or None."""
        with self._lock:
            limit = time.monotonic() - idle_s
            for segment in [s for s in self._free if s.since <= limit]:
                self._free.remove(segment)
                segment.close()
            return min((s.since - limit for s in self._free), default=None)

    @property
    def num_used(self) -> int:
        """Segments that some receiver still holds."""
        return len(self._used)

    @property
    def free_bytes(self) -> int:
        """Bytes kept warm for the next message."""
        return sum(s.capacity for s in self._free)

    def close(self) -> None:
        """Close all; receivers keep what they have mapped."""
        with self._lock:
            for segment in [*self._used.values(), *self._free]:
                segment.close()
            self._used.clear()
            self._free.clear()


class _CopyThreads:
    """The number of threads that copy a buffer, found by trying. Several are faster where one core doesn't
    saturate the memory bus. Where it does, they are slower: the C library copies past the cache what is
    longer than most of it, which the threads' parts may not be.
    """

    def __init__(self) -> None:
        self._num_copies: Counter[int] = Counter()
        self._costs: dict[tuple[int, int], float] = {}
        """Least seconds for a byte, by magnitude of the size and number of threads; it grows with time."""

    def choose(self, size: int) -> int:
        """Return the number of threads for the next copy of `size` bytes."""
        most = min(size // BYTES_PER_COPY_THREAD, MAX_COPY_THREADS, _num_cores())
        if most <= 1:
            return 1
        magnitude = size.bit_length()
        number = self._num_copies[magnitude]
        self._num_copies[magnitude] += 1
        if number < 2 * COPY_TRIES:
            return (most, 1)[number % 2]
        better, worse = sorted((most, 1), key=lambda each: self._costs.get((magnitude, each), 0.0))
        return worse if number % COPIES_PER_TRY == 0 else better

    def note(self, size: int, num_threads: int, seconds: float) -> None:
        """Record how long a copy has taken."""
        key = size.bit_length(), num_threads
        self._costs[key] = min(seconds / size, COST_GROWTH * self._costs.get(key, math.inf))


_copy_threads = _CopyThreads()


def copy_bytes(address: int, source: memoryview) -> None:
    """Copy `source` (contiguous) to `address` without holding the interpreter lock; large ones with several
    threads, where that's faster.
    """
    start, size = address_of(source), source.nbytes
    num_threads = _copy_threads.choose(size)
    share = -(-size // num_threads)
    parts = [(address + at, start + at, min(share, size - at)) for at in range(0, size, share)]
    helpers = [threading.Thread(target=ctypes.memmove, args=part) for part in parts[1:]]
    began = time.perf_counter()
    for helper in helpers:
        helper.start()
    ctypes.memmove(*parts[0])
    for helper in helpers:
        helper.join()
    if size >= 2 * BYTES_PER_COPY_THREAD:
        _copy_threads.note(size, num_threads, time.perf_counter() - began)


@functools.cache
def _num_cores() -> int:
    """Return the number of cores. Kept: to count them takes as long as to copy 100 KiB."""
    return os.cpu_count() or 1


def address_of(buffer: memoryview) -> int:
    """Return the address of the first byte of a contiguous buffer, writable or not."""
    view = _PyBuffer()
    _GET_BUFFER(ctypes.py_object(buffer), ctypes.byref(view), 0)
    address = view.buf or 0
    _RELEASE_BUFFER(ctypes.byref(view))
    return address


class _PyBuffer(ctypes.Structure):
    """The C API's Py_buffer: ctypes' own from_buffer refuses read-only memory."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_GET_BUFFER = ctypes.pythonapi.PyObject_GetBuffer
_RELEASE_BUFFER = ctypes.pythonapi.PyBuffer_Release


class Mapping(mmap.mmap):
    """A private mapping of another process' segment; it notifies the owner when its last view is gone."""

    on_release: Callable[[], None] | None = None  # stays None if the mapping was refused
    place = (0, 0, 0)
    """The owner's pid, descriptor, inode."""

    def open_file(self) -> int:
        """Open the segment's file once more; return a descriptor, to be closed.

        Raises:
            OwnerGone: if the owner is gone.
        """
        return _open_file(*self.place)

    def __del__(self) -> None:
        if self.on_release is not None:
            self.on_release()


def open_segment(pid: int, fd: int, inode: int, on_release: Callable[[], None]) -> Mapping:
    """Map the segment that process `pid` holds open as `fd`, copy-on-write.

    `on_release` is called, from whatever thread, when the last buffer made of the mapping is gone; it must
    not block.

    Raises:
        OwnerGone: if the owner is gone.
        SegmentError: if `fd` is another file by now.
    """
    own = _open_file(pid, fd, inode)
    try:
        size = os.fstat(own).st_size
        mapping = Mapping(own, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(own)
    mapping.place = pid, fd, inode
    mapping.on_release = on_release
    return mapping


def _open_file(pid: int, fd: int, inode: int) -> int:
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise OwnerGone(f"a buffer of process {pid} is gone with its owner ({error.strerror})") from None
    if os.fstat(own).st_ino != inode:
        os.close(own)
        raise SegmentError(f"a buffer of process {pid} was dropped by its owner before it was read")
    return own
