"""The journal on disk: records, files of bounded size, entries."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from monarch_nb._journal import entries as journal_entries
from monarch_nb._journal import record as records
from monarch_nb._journal.entries import EntryLog
from monarch_nb._journal.output import OutputStore, read_all
from monarch_nb._journal.record import Record, client_origin, is_cell, pack, unpack
from monarch_nb._protocol.cells import CellFailure, CellOver
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.healing import Report
from monarch_nb._protocol.journal import CallRecord, EndpointCalls, Environment, JournalEntry
from monarch_nb._protocol.states import CellStatus

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
    first = log.begin_entry(JournalEntry("cell", source="x = 1"))
    log.begin_entry(JournalEntry("cell", source="y"))
    log.change(replace(first, ended=2.0, status="ok"))
    log.change(JournalEntry("cell", 99, ended=1.0))
    log.close()
    path = tmp_path / journal_entries.FILE
    assert path.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [
        {"n": 1, "kind": "cell", "source": "x = 1"},
        {"n": 2, "kind": "cell", "source": "y"},
        {"n": 1, "ended": 2.0, "status": "ok"},
    ]
    with open(path, "a") as file:
        file.write('{"n": 3, "ki')  # a crash in the middle of a line
    found = journal_entries.read(str(tmp_path))
    assert [(e.n, e.status, e.ended) for e in found] == [(1, "ok", 2.0), (2, "running", None)]
    with pytest.raises(FileNotFoundError):
        journal_entries.read(str(tmp_path / "nowhere"))


def test_too_many_entries_lose_their_older_half_and_say_so(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path), max_entries=10)
    for _ in range(11):
        entry = log.begin_entry(JournalEntry("cell"))
        log.change(replace(entry, ended=1.0))
    log.close()
    found = journal_entries.read(str(tmp_path))
    assert len(found) < 10
    assert [e.text for e in found if e.kind == "note"] == [
        "5 older entries were dropped: the journal keeps 10"
    ]
    assert found[-1].n > 11 or found[-2].n == 11


def test_entries_may_be_written_later(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path))
    asked = []
    log.when_dirty = lambda: asked.append(1)
    log.begin_entry(JournalEntry("cell"))
    log.begin_entry(JournalEntry("cell"))
    assert len(asked) == 1
    assert (tmp_path / journal_entries.FILE).read_text() == ""
    log.flush()
    assert len((tmp_path / journal_entries.FILE).read_text().splitlines()) == 2
    log.close()


WRITTEN = """
{"n": 1, "kind": "start", "who": "a.ipynb (pid 7)", "when": 1.5, "ended": 2, "status": "ok", \
"ranks": "0-1", "dims": {"procs": 2}, "environment": {"id": "ab", "python": "3.11", "packages": {}, \
"host": "h", "variables": {}}}
{"n": 2, "kind": "cell", "who": "a.ipynb (pid 7)", "when": 3.0, "source": "1 / 0", "ranks": "0-1", \
"group": "g", "number": 4, "env": "ab", "position": 10}
{"n": 2, "ended": 4.0, "end_position": 20, "seen": false, "status": "error", "reason": "failure", \
"unfinished": {"1": {"stacks": null, "how": "asked", "missing": "busy"}}, "failures": [{"rank": 0, \
"type": "ZeroDivisionError", "message": "division by zero", "when": 3.5}], "stopped": [1], "said": \
[], "seconds": {"0": 0.5}}
{"n": 3, "kind": "calls", "who": "x", "when": 5.0, "calls": [{"endpoint": "a.b", "ranks": "0", \
"num": 2, "when": 5.0, "num_failed": 0, "seconds": {"0": 0.1}, "each": [{"when": 5.0, "num_failed": \
0, "seconds": {}}]}]}
{"n": 4, "kind": "lost", "text": "rank 1", "end": {"proc": 9, "group": "g", "rank": 1, "host": "h", \
"pid": 8, "signal": 9, "exit_code": null, "stopped": false, "reason": "", "point": {"procs": 1}, \
"notified": [[1, 2]], "restarted": false, "policy": ""}}
{"n": 5, "kind": "heal", "report": {"ranks": [1], "hosts": [], "actors": {}, "actor_ids": [], \
"messages": [], "problems": [], "seconds": 0.1}}
"""
"""What the first versions wrote."""


def test_what_earlier_versions_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / journal_entries.FILE).write_text(WRITTEN)
    start, cell, calls, lost, heal = journal_entries.read(str(tmp_path))
    assert start.environment == Environment("ab", "3.11", {}, "h", {}) and start.dims == {"procs": 2}
    assert cell.over() == CellOver(
        CellStatus.ERROR,
        "failure",
        {1: {"stacks": None, "how": "asked", "missing": "busy"}},
        [CellFailure(0, "ZeroDivisionError", "division by zero", 3.5)],
        [1],
        [],
        {0: 0.5},
    )
    assert calls.calls == [EndpointCalls(5.0, 0, {0: 0.1}, "a.b", "0", 2, [CallRecord(5.0, 0, {})])]
    assert lost.end == RankExit(9, "g", 1, "h", 8, signal=9, point={"procs": 1}, notified=((1, 2),))
    assert heal.report == Report([1], seconds=0.1)


@pytest.mark.parametrize("n", range(1, 6))
def test_entries_are_read_as_they_were_written(tmp_path: Path, n: int) -> None:
    (tmp_path / journal_entries.FILE).write_text(WRITTEN)
    entry = journal_entries.read(str(tmp_path))[n - 1]
    assert JournalEntry.of_json(entry.as_json()) == entry
    log = EntryLog(str(tmp_path / "again"))
    assert log.begin_entry(entry) == replace(entry, n=1)
    log.close()
    assert journal_entries.read(log.directory) == [replace(entry, n=1)]


def test_what_isnt_an_entry_is_left_out_and_odd_fields_are(tmp_path: Path) -> None:
    lines = ["7", "[", "[" * 100_000, "{}", '{"n": "1", "kind": "cell"}', '{"n": 2}', '{"n": 3, "kind": 4}']
    odd = {
        "n": 4,
        "kind": "later",
        "when": "today",
        "seconds": {"all": 1},
        "report": 3,
        "new": [1],
        "who": "x",
    }
    (tmp_path / journal_entries.FILE).write_text("\n".join([*lines, json.dumps(odd)]) + "\n")
    assert journal_entries.read(str(tmp_path)) == [JournalEntry("later", 4, "x")]


def test_what_has_gone_back_is_written_too(tmp_path: Path) -> None:
    log = EntryLog(str(tmp_path))
    entry = log.begin_entry(JournalEntry("cell", seen=True))
    log.change(replace(entry, seen=False))
    log.close()
    assert not journal_entries.read(str(tmp_path))[0].seen
