"""Who did what: bounded in memory and on disk, readable by nobody else, and moved with the journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from monarch_nb._journal import audit as audits
from monarch_nb._journal.audit import FILE, MAX_BYTES, MAX_ROWS, Audit, read
from monarch_nb._protocol.roles import Role


def at_once(write: Callable[[], None]) -> None:
    write()


def test_it_is_in_the_file_and_nobody_else_can_read_that(tmp_path: Path) -> None:
    audit = Audit(lambda: str(tmp_path), at_once)
    audit.note("observer-1", Role.OBSERVER, "ada@lab", "run_cell", detail="x = 1", refused="no")
    (row,) = read(str(tmp_path), 10)
    assert (row.key, row.role, row.who, row.what, row.detail, row.refused) == (
        "observer-1", Role.OBSERVER, "ada@lab", "run cell", "x = 1", "no",
    )  # fmt: skip
    assert os.stat(tmp_path / FILE).st_mode & 0o777 == 0o600


def test_the_same_again_is_counted(tmp_path: Path) -> None:
    audit = Audit(lambda: str(tmp_path), at_once)
    for _ in range(500):
        audit.note("observer-1", Role.OBSERVER, "ada@lab", "snapshot")
        audit.note("observer-1", Role.OBSERVER, "ada@lab", "status")
    assert [(row.what, row.times) for row in audit.last(10)] == [("snapshot", 500), ("status", 500)]
    assert (tmp_path / FILE).read_bytes().count(b"\n") == 2
    audit.close()
    assert [row.times for row in read(str(tmp_path), 10)] == [500, 500]


def test_neither_memory_nor_disk_grow_without_end(tmp_path: Path) -> None:
    audit = Audit(lambda: str(tmp_path), at_once)
    for n in range(5 * MAX_ROWS):
        audit.note("k", Role.OPERATOR, "w" * 10_000, f"{n}" * 100, detail="d" * 10_000, refused="no")
    assert len(audit.last(10**6)) == MAX_ROWS
    assert os.stat(tmp_path / FILE).st_size < MAX_BYTES + 2000


def test_it_goes_where_the_journal_goes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    place = [first]
    audit = Audit(lambda: str(place[0]), at_once)
    audit.note("", Role.OWNER, "me", "spawn")
    place[0] = second
    audit.note("", Role.OWNER, "me", "adopt")
    assert [row.what for row in read(str(second), 10)] == ["spawn", "adopt"]
    assert not (first / FILE).exists()


def test_a_disk_that_cannot_be_written_to_stops_nobody(tmp_path: Path) -> None:
    audit = Audit(lambda: str(tmp_path / "gone"), at_once)
    audit.note("", Role.OWNER, "me", "spawn")
    audit.close()
    assert len(audit.last(5)) == 1
    (tmp_path / FILE).write_text('nonsense\n{"when": "x"}\n')
    assert audits.read(str(tmp_path), 5) == []
