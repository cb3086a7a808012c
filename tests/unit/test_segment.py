"""Segments between two real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from monarch_nb._wire.message import ENTRY
from monarch_nb._wire.segment import Mapping, SegmentError, SegmentPool, open_segment

SIZE = 2 << 20
READER = """
import sys
from monarch_nb._wire.segment import open_segment
mapping = open_segment(*map(int, sys.argv[1:4]), on_release=lambda: print("released", flush=True))
view = memoryview(mapping)
print(view[0], flush=True)
view[0] = 99
print(view[0], flush=True)
if sys.stdin.readline():
    print(view[0], flush=True)
    del view, mapping
    sys.stdin.readline()
"""


def written(pool: SegmentPool, value: int, holders: list[int]) -> tuple[int, int, int]:
    _, fd, pid, inode, offset, size = ENTRY.unpack(pool.write([memoryview(bytes([value]) * SIZE)], holders))
    assert (offset, size) == (0, SIZE)
    return pid, fd, inode


def reader(where: tuple[int, int, int]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", READER, *map(str, where)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def test_changes_stay_with_who_made_them() -> None:
    pool = SegmentPool()
    where = written(pool, 7, [1, 2])
    one, two = reader(where), reader(where)
    assert [line(one), line(one)] == ["7", "99"]
    assert [line(two), line(two)] == ["7", "99"]
    mine = open_segment(*where, on_release=lambda: None)
    assert mine[0] == 7
    for process in (one, two):
        tell(process)
        assert line(process) == "99"
        assert line(process) == "released"
        process.communicate()
    del mine
    pool.close()


def test_segments_are_used_again_only_when_all_have_dropped_them() -> None:
    pool = SegmentPool()
    _, _, first = written(pool, 1, [1, 2])
    pool.release(first, 1)
    _, _, second = written(pool, 2, [1])
    assert second != first
    pool.release(first, 2)
    assert pool.free_bytes == SIZE
    _, _, third = written(pool, 3, [1])
    assert third == first
    pool.forget(1)
    assert pool.num_used == 0
    pool.close()


def test_idle_segments_are_given_back() -> None:
    pool = SegmentPool()
    _, fd, inode = written(pool, 1, [1])
    pool.release(inode, 1)
    assert pool.trim(idle_s=1000.0) is not None
    assert pool.free_bytes == SIZE
    assert pool.trim(idle_s=0.0) is None
    assert pool.free_bytes == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_killed_reader_leaves_nothing() -> None:
    pool = SegmentPool()
    where = written(pool, 1, [5])
    process = reader(where)
    assert line(process) == "1"
    process.kill()
    process.communicate()
    pool.forget(5)
    assert pool.num_used == 0
    pool.close()


def test_a_segment_that_is_gone_says_so() -> None:
    pool = SegmentPool()
    pid, fd, inode = written(pool, 1, [1])
    with pytest.raises(SegmentError, match="was dropped by its owner"):
        open_segment(pid, fd, inode + 1, on_release=lambda: None)
    pool.close()
    with pytest.raises(SegmentError, match="gone with its owner"):
        open_segment(pid, 1_000_000, inode, on_release=lambda: None)


def test_release_comes_when_the_last_view_goes() -> None:
    pool = SegmentPool()
    released: list[bool] = []
    mapping: Mapping | None = open_segment(*written(pool, 1, [1]), on_release=lambda: released.append(True))
    assert mapping is not None
    view: memoryview | None = memoryview(mapping)[10:20]
    mapping = None
    assert released == []
    view = None
    assert view is None
    assert released == [True]
    pool.close()
