"""The journal on disk: records, files of bounded size, entries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb._journal import entries as journal_entries
from monarch_nb._journal import record as records
from monarch_nb._journal.entries import EntryLog
from monarch_nb._journal.output import OutputStore, read_all
from monarch_nb._journal.record import Record, client_origin, is_cell, pack, unpack

some_records = st.lists(
    st.builds(
        Record,
        kind=st.sampled_from([records.TEXT, records.DISPLAY, records.RESULT]),
        stream=st.sampled_from(["stdout", "stderr"]),
        group=st.integers(0, 65535),
        rank=st.integers(0, 2**32 - 1),
        origin=st.integers(0, 2**32 - 1),
        seq=st.integers(0, 2**60),
        when=st.floats(0, 1e10),
        data=st.binary(max_size=50),
    )
)


@given(some_records, st.integers(0, 40))
def test_records_round_trip_and_a_cut_tail_is_left_out(found: list[Record], cut: int) -> None:
    data = b"".join(map(pack, found))
    assert list(unpack(data)) == found
    shorter = list(unpack(data[: len(data) - cut]))
    assert shorter == found[: len(shorter)]


def test_golden_bytes() -> None:
    packed = pack(Record(records.TEXT, "stderr", 2, 3, 4, 5, 1.0, b"hi"))
    assert packed.hex() == "020000000101020003000000040000000500000000000000000000000000f03f6869"


def test_origins() -> None:
    assert is_cell(1)
    assert not is_cell(0)
    assert not is_cell(client_origin(1, 1))
    assert client_origin(1, 1) != client_origin(2, 1)
    assert client_origin(5, 1 << 20) < 1 << 32


def store_of(path: Path, **limits: int) -> OutputStore:
    return OutputStore(str(path / "journal"), **limits)  # type: ignore[arg-type]


def texts(data: bytes) -> list[bytes]:
    return [r.data for r in unpack(data)]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for i in range(10):
        store.append(records.TEXT, "stdout", "a" if i % 2 else "b", i % 3, i, b"%d" % i)
    everything = store.scan(0, None)
    assert texts(everything.data) == [b"%d" % i for i in range(10)]
    assert everything.position == store.end
    assert [r.seq for r in unpack(everything.data)] == list(range(1, 11))
    one = store.scan(0, lambda r: r.rank == 1)
    assert texts(one.data) == [b"1", b"4", b"7"]
    assert store.scan(store.end, None) == (b"", store.end, 0)
    assert store.scan(store.end + 5, None).data == b""
    store.close()
    assert [(g, r.data) for g, r in read_all(store.directory)][:2] == [("b", b"0"), ("a", b"1")]


def test_reading_goes_on_from_file_to_file(tmp_path: Path) -> None:
    store = store_of(tmp_path, segment_bytes=200)
    for i in range(50):
        store.append(records.TEXT, "stdout", "g", 0, 1, b"%03d" % i)
    assert len(os.listdir(store.directory)) > 5
    position, found = 0, []
    while position < store.end:
        scan = store.scan(position, None, max_bytes=100)
        assert scan.position > position
        position = scan.position
        found += texts(scan.data)
    assert found == [b"%03d" % i for i in range(50)]
    store.close()


def test_a_large_record_comes_by_itself(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.append(records.TEXT, "stdout", "g", 0, 1, b"x" * 5000)
    position = store.scan(0, None, max_bytes=64).position
    assert texts(store.scan(position, None, max_bytes=64).data) == [b"x" * 5000]
    store.close()


def test_the_oldest_file_goes_and_who_reads_it_hears(tmp_path: Path) -> None:
    store = store_of(tmp_path, segment_bytes=1000, max_bytes=3000)
    for _ in range(200):
        store.append(records.TEXT, "stdout", "g", 0, 1, b"x" * 50)
    assert store.start > 0
    assert sum(f.stat().st_size for f in Path(store.directory).iterdir()) <= 3000 + 1000
    scan = store.scan(0, None)
    assert scan.num_lost_bytes == store.start
    assert texts(scan.data)
    store.close()


def test_old_files_go_by_age(tmp_path: Path) -> None:
    store = OutputStore(str(tmp_path / "j"), segment_bytes=100, max_age_s=1000.0)
    store.append(records.TEXT, "stdout", "g", 0, 1, b"x" * 100)
    (first,) = Path(store.directory).iterdir()
    os.utime(first, (1, 1))
    store.append(records.TEXT, "stdout", "g", 0, 1, b"y" * 100)
    assert not first.exists()
    store.close()


def test_files_are_private_and_move_along(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.append(records.TEXT, "stdout", "g", 0, 1, b"before")
    store.move(str(tmp_path / "elsewhere"))
    store.append(records.TEXT, "stdout", "g", 0, 1, b"after")
    assert texts(store.scan(0, None).data) == [b"before", b"after"]
    (file,) = Path(store.directory).iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert Path(store.directory).stat().st_mode & 0o777 == 0o700
    store.close()


def test_entries_are_appended_and_merged(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path))
    first = log.begin_entry("cell", source="x = 1")
    log.begin_entry("cell", source="y")
    log.add(first["n"], ended=2.0, status="ok")
    log.add(99, ended=1.0)
    log.close()
    path = tmp_path / journal_entries.FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_text().splitlines()) == 3
    with open(path, "a") as file:
        file.write('{"n": 3, "ki')  # a crash in the middle of a line
    found = journal_entries.read(str(tmp_path))
    assert [(e["n"], e.get("status")) for e in found] == [(1, "ok"), (2, None)]
    with pytest.raises(FileNotFoundError):
        journal_entries.read(str(tmp_path / "nowhere"))


def test_too_many_entries_lose_their_older_half_and_say_so(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path), max_entries=10)
    for _ in range(11):
        entry = log.begin_entry("cell")
        log.add(entry["n"], ended=1.0)
    log.close()
    found = journal_entries.read(str(tmp_path))
    assert len(found) < 10
    assert [e["text"] for e in found if e["kind"] == "note"] == [
        "5 older entries were dropped: the journal keeps 10"
    ]
    assert found[-1]["n"] > 11 or found[-2]["n"] == 11


def test_entries_may_be_written_later(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path))
    asked = []
    log.when_dirty = lambda: asked.append(1)
    log.begin_entry("cell")
    log.begin_entry("cell")
    assert len(asked) == 1
    assert (tmp_path / journal_entries.FILE).read_text() == ""
    log.flush()
    assert len((tmp_path / journal_entries.FILE).read_text().splitlines()) == 2
    log.close()
