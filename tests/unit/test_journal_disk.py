"""The journal on a file system that is full for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from small_disk import SmallDisk, small_disk

from monarch_nb._journal import disk as disks
from monarch_nb._journal import entries as journal_entries
from monarch_nb._journal import record as records
from monarch_nb._journal.entries import EntryLog
from monarch_nb._journal.output import OutputStore, read_all
from monarch_nb._protocol.journal import JournalEntry


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


def fill_store(store: OutputStore, num: int, size: int = 3000) -> list[bool]:
    return [
        store.append(records.TEXT, "stdout", "g", 0, 1, b"%04d" % i + b"x" * size).kept for i in range(num)
    ]


def test_output_goes_on_and_comes_back_whole(disk: SmallDisk) -> None:
    store = OutputStore(str(disk.path / "journal"))
    broken: list[OSError] = []
    store.when_broken = broken.append
    assert fill_store(store, 3) == [True] * 3
    disk.fill()
    kept = fill_store(store, 10)
    assert not kept[-1]
    assert len(broken) == 1, "told once"
    assert store.is_paused
    assert store.num_unkept_bytes > 3000 * kept.count(False)
    with pytest.raises(OSError, match="No space left"):
        store.resume("still full")
    assert store.is_paused
    (file,) = Path(store.directory).iterdir()
    assert file.stat().st_size == store.end, "what was written of a record in part is cut off"
    disk.free()
    store.resume("some are missing")
    assert fill_store(store, 2) == [True] * 2
    everything = list(records.unpack(store.scan(0, None).data)) + list(
        records.unpack(store.scan(file.stat().st_size, None).data)
    )
    assert [r.kind for r in everything].count(records.NOTE) == 1
    assert len(everything) == 3 + kept.count(True) + 1 + 2
    assert [r.data for _, r in read_all(store.directory)] == [r.data for r in everything]
    store.close()


def test_a_tail_that_cant_be_cut_off_is_left_out(tmp_path: Path) -> None:
    store = OutputStore(str(tmp_path / "journal"))
    fill_store(store, 2, size=10)
    store.pause()
    (file,) = Path(store.directory).iterdir()
    with open(file, "ab") as torn:
        torn.write(records.pack(records.Record(records.TEXT, "stdout", 0, 0, 1, 9, 0.0, b"x" * 50))[:40])
    store.resume("a note")
    fill_store(store, 1, size=10)
    position, found = 0, []
    while position < store.end:
        scan = store.scan(position, None)
        position = scan.position
        found += [r.data[:4] for r in records.unpack(scan.data)]
        assert not scan.num_lost_bytes
    assert found == [b"0000", b"0001", b"a no", b"0000"]
    assert [r.data[:4] for _, r in read_all(store.directory)] == found
    store.close()


def test_files_that_somebody_takes_away_are_missing_and_no_more(tmp_path: Path) -> None:
    store = OutputStore(str(tmp_path / "journal"), segment_bytes=100)
    fill_store(store, 3, size=100)
    first = min(Path(store.directory).iterdir())
    size = first.stat().st_size
    first.unlink()
    scan = store.scan(0, None)
    assert scan == (b"", size, size)
    assert store.scan(scan.position, None).data
    store.close()


def test_entries_are_written_anew_when_there_is_room(disk: SmallDisk) -> None:
    log = EntryLog(str(disk.path))
    broken: list[OSError] = []
    log.when_broken = broken.append
    first = log.begin_entry(JournalEntry("cell", source="before"))
    disk.fill()
    for i in range(30):
        log.begin_entry(JournalEntry("cell", source=f"{i} " + "x" * 500))
    log.change(replace(first, status="ok"))
    assert len(broken) == 1
    assert {e.source[:6] for e in journal_entries.read(str(disk.path))} >= {"before"}
    with pytest.raises(OSError, match="No space left"):
        log.resume()
    assert sorted(f.name for f in disk.path.iterdir()) == [journal_entries.FILE, "stuffing"]
    disk.free()
    log.resume()
    log.begin_entry(JournalEntry("cell", source="after"))
    found = journal_entries.read(str(disk.path))
    assert [e.n for e in found] == list(range(1, 33))
    assert found[0].status == "ok"
    log.close()


def test_who_cant_write_is_told_which_disk_it_is(disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(OSError, match="No space left") as error:
        disks.check_room(str(disk.path))
    assert (
        disks.why(error.value, str(disk.path / "a" / "b"))
        == f"no space left on the disk at {disk.path} (0 bytes of 1 MiB free)"
    )
    disk.free()
    disks.check_room(str(disk.path))
