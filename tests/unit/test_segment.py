"""Segments between two real processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from monarch_nb._wire import segment
from monarch_nb._wire.codec import decode, encode
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
        [sys.executable, "-c", READER, *map(str, where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
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


def is_open(fd: int, inode: int) -> bool:
    """Say whether `fd` still is this segment: another thread may have been given the number since."""
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


def test_idle_segments_are_given_back() -> None:
    pool = SegmentPool()
    _, fd, inode = written(pool, 1, [1])
    pool.release(inode, 1)
    assert pool.trim(idle_s=1000.0) is not None
    assert pool.free_bytes == SIZE
    assert pool.trim(idle_s=0.0) is None
    assert pool.free_bytes == 0
    assert not is_open(fd, inode)


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


# : An owner's descriptors for one segment: its own, and the duplicate that Python's mmap keeps. A reader has
# the latter only.
PER_SEGMENT = 2


def memfds(pid: int) -> list[tuple[int, str]]:
    """Return inode and number of each descriptor of our segments that a process holds open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, such as the listing's own
            if entry.readlink().name.startswith("memfd:monarch_nb "):
                found.append((entry.stat().st_ino, entry.name))
    return found


@pytest.fixture
def own_memfds() -> Callable[[], int]:
    """Count descriptors of segments that the test has opened: those of tests before it stay open for some
    seconds.
    """
    before = {inode for inode, _ in memfds(os.getpid())}
    return lambda: sum(inode not in before for inode, _ in memfds(os.getpid()))


def inodes_mapped(pid: int) -> set[int]:
    """Return the inodes of our segments that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(text.split()[4]) for text in lines if "memfd:monarch_nb " in text}


def test_a_killed_reader_leaves_no_memory_and_its_segment_is_used_again(
    own_memfds: Callable[[], int],
) -> None:
    pool = SegmentPool()
    where = written(pool, 1, [5])
    process = reader(where)
    assert [line(process), line(process)] == ["1", "99"]
    assert len(memfds(process.pid)) == 1
    assert inodes_mapped(process.pid) == {where[2]}
    process.kill()
    process.communicate()
    assert pool.num_used == 1
    pool.forget(5)
    assert written(pool, 2, [6]) == where  # the dead reader's segment serves the next message
    assert own_memfds() == PER_SEGMENT
    pool.close()
    assert own_memfds() == 0
    assert where[2] not in inodes_mapped(os.getpid())


OWNER = """
import os, sys
from monarch_nb._wire.segment import SegmentPool
from monarch_nb._wire.message import ENTRY
pool = SegmentPool()
_, fd, pid, inode, _, _ = ENTRY.unpack(pool.write([memoryview(bytes([7]) * (2 << 20))], [1]))
print(pid, fd, inode, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_owner_sent_stays_readable() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid, fd, inode = map(int, line(owner).split())
    mapping = open_segment(pid, fd, inode, on_release=lambda: None)
    owner.kill()
    owner.communicate()
    assert (mapping[0], mapping[-1]) == (7, 7)
    with pytest.raises(SegmentError, match="gone with its owner"):
        open_segment(pid, fd, inode, on_release=lambda: None)
    del mapping
    assert inode not in inodes_mapped(os.getpid())


def test_a_used_segment_is_not_trimmed() -> None:
    pool = SegmentPool()
    _, fd, inode = written(pool, 1, [1])
    assert pool.trim(idle_s=0.0) is None
    assert os.fstat(fd).st_ino == inode
    pool.close()


def test_the_wrong_holder_releases_nothing() -> None:
    pool = SegmentPool()
    _, _, inode = written(pool, 1, [1])
    pool.release(inode, 2)
    pool.release(inode + 1, 1)
    pool.forget(3)
    assert pool.num_used == 1
    pool.close()


def test_small_messages_do_not_take_big_segments() -> None:
    pool = SegmentPool()
    big = ENTRY.unpack(pool.write([memoryview(bytes(5 * SIZE))], [1]))[3]
    pool.release(big, 1)
    _, _, small = written(pool, 1, [1])
    assert small != big
    assert pool.free_bytes == 5 * SIZE
    pool.close()


def test_free_segments_are_capped(monkeypatch: pytest.MonkeyPatch, own_memfds: Callable[[], int]) -> None:
    monkeypatch.setattr(segment, "MAX_FREE_BYTES", 2 * SIZE)
    pool = SegmentPool()
    for inode in [written(pool, value, [1])[2] for value in range(4)]:
        pool.release(inode, 1)
    assert pool.free_bytes == 2 * SIZE
    assert own_memfds() == 2 * PER_SEGMENT
    pool.close()


def test_several_buffers_share_a_segment_on_page_borders() -> None:
    pool = SegmentPool()
    parts = [bytes([i]) * size for i, size in ((1, 5000), (2, 9 << 20), (3, 1))]
    table = pool.write([memoryview(part) for part in parts], [1])
    entries = list(ENTRY.iter_unpack(table))
    _, fd, pid, inode, _, _ = entries[0]
    mapping = open_segment(pid, fd, inode, on_release=lambda: None)
    assert [e[4] % segment.ALIGN for e in entries] == [0, 0, 0]
    assert [mapping[e[4] : e[4] + e[5]] for e in entries] == parts
    del mapping
    pool.close()


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4096, (16 << 20) - 1, (24 << 20) + 3])
def test_copies_are_whole_whatever_the_number_of_threads(
    size: int, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment._copy_threads, "choose", lambda _size: num_threads)
    source = os.urandom(4096) * (size // 4096 + 1)
    target = bytearray(size + 8)
    address = segment.address_of(memoryview(target))
    segment.copy_bytes(address + 4, memoryview(source)[:size])
    assert target[4:-4] == source[:size]
    assert (target[:4], target[-4:]) == (bytes(4), bytes(4))


@pytest.mark.parametrize("seconds", [{1: 0.008, 2: 0.004}, {1: 0.004, 2: 0.008}])
def test_number_of_threads_is_the_quicker_one(
    seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "_num_cores", lambda: 2)
    threads, size = segment._CopyThreads(), 64 << 20
    chosen = []
    for _ in range(40):
        chosen.append(threads.choose(size))
        threads.note(size, chosen[-1], seconds[chosen[-1]])
    quicker = min(seconds, key=lambda num: seconds[num])
    assert sorted(chosen[:6]) == [1, 1, 1, 2, 2, 2] and set(chosen[6:]) == {quicker}
    other = 3 - quicker
    later = [threads.choose(size) for _ in range(200)]
    assert 0 < later.count(other) <= 5  # tried again now and then
    assert threads.choose(4 << 20) == 1


def test_a_machine_that_changes_gets_another_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_num_cores", lambda: 2)
    threads, size = segment._CopyThreads(), 64 << 20
    for change in ({1: 0.004, 2: 0.008}, {1: 0.016, 2: 0.008}):
        for _ in range(400):
            num = threads.choose(size)
            threads.note(size, num, change[num])
    assert [threads.choose(size) for _ in range(10)].count(2) >= 9


def test_a_mapping_that_is_refused_raises_and_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    fd = os.memfd_create("monarch_nb")
    os.ftruncate(fd, 1 << 47)  # more than a process can address; takes no memory
    with pytest.raises(OSError, match="Cannot allocate memory"):
        open_segment(os.getpid(), fd, os.fstat(fd).st_ino, on_release=lambda: None)
    os.close(fd)
    assert complaints == []


def test_with_many_segments_small_buffers_ride_along_and_at_last_all_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = b"s" * segment.MIN_BYTES, b"l" * segment.MIN_OF_MANY_BYTES

    def beside() -> list[bool]:
        return [bool(encode(each).buffers) for each in (small, large)]

    assert beside() == [True, True]
    monkeypatch.setattr(segment.Segment, "num_open", segment.FEW)
    assert beside() == [False, True]
    monkeypatch.setattr(segment.Segment, "num_open", resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    assert beside() == [False, False]
    assert decode(*encode([small, large])) == [small, large]


def test_segments_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = segment.Segment.num_open
    pool = SegmentPool()
    written(pool, 1, [1])
    assert segment.Segment.num_open == before + 1
    monkeypatch.setattr(segment, "reserve", _refuse)
    with pytest.raises(segment.SharedMemoryError):
        written(pool, 1, [1])
    pool.close()
    assert segment.Segment.num_open == before


def _refuse(fd: int, num_bytes: int) -> None:
    raise OSError(28, "full")
