"""Bytes whose data are pages of a segment: they're bytes in all that can be done with them, and the sender
hears when the last holder is gone.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import mmap
import os
import pickle
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb._wire import codec, mapped_bytes
from monarch_nb._wire.message import ENTRY
from monarch_nb._wire.segment import ALIGN, SegmentPool, open_segment

needs_mapped = pytest.mark.skipif(
    not mapped_bytes.is_layout_known(), reason="on this interpreter, long bytes are copied"
)
MIB = 1 << 20
RECEIVER = 7


@pytest.fixture
def pool() -> Iterator[SegmentPool]:
    gc.collect()
    mapped_bytes.give_back()  # what tests before had
    made = SegmentPool()
    yield made
    made.close()


def sent(pool: SegmentPool, value: object) -> object:
    """Return a value as a process of this machine receives it from the owner of `pool`."""
    encoded = codec.encode(value)
    table = pool.write([memoryview(each).cast("B") for each in encoded.buffers], [RECEIVER])
    if not table:
        return codec.decode(encoded.payload)
    entries = list(ENTRY.iter_unpack(table))
    _, fd, pid, inode, _, _ = entries[0]
    mapping = open_segment(pid, fd, inode, lambda: pool.release(inode, RECEIVER))
    views = [memoryview(mapping)[offset : offset + size] for *_, offset, size in entries]
    return codec.decode(encoded.payload, views)


def is_mapped(value: bytes) -> bool:
    """Say whether a value's data are pages of a segment."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.split()[0].partition("-")
        if int(start, 16) <= id(value) + mmap.PAGESIZE < int(end, 16):
            return "/memfd:monarch_nb" in line
    return False


def test_where_they_cant_be_had_is_known() -> None:
    """Each layout that was tried passes the check, and no other is taken."""
    is_ordinary = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    is_ordinary = is_ordinary and not hasattr(sys, "gettotalrefcount")
    assert mapped_bytes.is_layout_known() == (is_ordinary and sys.version_info[:2] in mapped_bytes.TRIED)


@needs_mapped
@pytest.mark.parametrize("size", [MIB, MIB + 1, 3 * MIB - 1, 2 * ALIGN * 300])
def test_they_are_bytes_in_all_that_can_be_done(pool: SegmentPool, size: int) -> None:
    value = os.urandom(size)
    sent(pool, b"\xff" * (size + ALIGN))  # what the pages held before
    found = sent(pool, value)
    assert type(found) is bytes and is_mapped(found) and not is_mapped(value)
    assert found == value and len(found) == size and hash(found) == hash(value)
    assert {value: 1}[found] == 1 and found in {value}
    assert found[-3:] == value[-3:] and found[::-1][:5] == value[::-1][:5] and found + b"x" == value + b"x"
    assert hashlib.sha256(found).digest() == hashlib.sha256(value).digest()
    assert pickle.loads(pickle.dumps(found, 5)) == value and bytearray(found) == value
    assert memoryview(found).readonly and ctypes.string_at(id(found) + 32 + size, 1) == b"\0"
    assert type(bytes(found)) is bytes and bytes(found) is found
    longer = found
    longer += b"y"  # which CPython does in place where nobody else has the object
    assert found == value and longer == value + b"y"


@needs_mapped
def test_the_sender_hears_when_the_last_holder_is_gone(pool: SegmentPool) -> None:
    found = sent(pool, {"a": os.urandom(MIB), "b": [os.urandom(2 * MIB)]})
    assert isinstance(found, dict) and mapped_bytes.give_back() == mapped_bytes.LOOK_S
    held = memoryview(found["b"][0])[5:9]
    was = bytes(held)
    del found
    mapped_bytes.give_back()
    assert pool.num_used == 1 and bytes(held) == was
    del held
    assert mapped_bytes.give_back() is None
    assert pool.num_used == 0 and pool.free_bytes > 0
    assert mapped_bytes.give_back() is None


def test_threads_may_drop_and_look_at_the_same_time(pool: SegmentPool) -> None:
    value = os.urandom(MIB)
    wrong = []

    def work() -> None:
        for _ in range(50):
            found = sent(pool, value)
            if found != value:
                wrong.append(found)
            del found
            mapped_bytes.give_back()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert mapped_bytes.give_back() is None and pool.num_used == 0 and not wrong


def test_a_forked_process_has_them_and_gives_nothing_back(pool: SegmentPool) -> None:
    value = os.urandom(MIB)
    found = sent(pool, value)
    pid = os.fork()
    if pid == 0:
        is_same = found == value
        del found
        os._exit(0 if is_same and mapped_bytes.give_back() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert found == value and pool.num_used == 1


@needs_mapped
def test_where_they_cant_be_mapped_they_are_copied(
    pool: SegmentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = os.urandom(MIB)
    monkeypatch.setattr(mapped_bytes, "MAX_LENT", 1)
    first, second = sent(pool, value), sent(pool, value)
    assert isinstance(first, bytes) and isinstance(second, bytes)
    assert first == second == value and is_mapped(first) and not is_mapped(second)
    del first
    mapped_bytes.give_back()
    monkeypatch.setattr(mapped_bytes, "is_layout_known", lambda: False)
    third = sent(pool, value)
    assert third == value and isinstance(third, bytes) and not is_mapped(third)
    fourth = sent(pool, bytearray(value))
    assert type(fourth) is bytearray and fourth == value
    assert mapped_bytes.give_back() is None
