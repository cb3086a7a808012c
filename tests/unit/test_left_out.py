"""A display that doesn't keep up with many lines is sent the first and the last ones, and their number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch_nb._display.fold import Fold
from monarch_nb._display.lines import Lines
from monarch_nb._host.controller.watch import KEEPS_UP_BYTES, WINDOW_BYTES, Watch
from monarch_nb._journal import record as records
from monarch_nb._journal.output import OutputStore
from monarch_nb._protocol.base import decode
from monarch_nb._protocol.cells import RecordsPrinted, WatchMessage
from monarch_nb._wire import message as wire

CLIENT, REF = 7, 3
PIECE = 1 << 16


class Steps:
    """A loop whose callbacks run when they're told to."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    call_shortly = call_soon

    def run(self) -> None:
        while self._soon:
            self._soon.pop(0)()


class Watched:
    """A cell's output in a journal, and a client that watches it."""

    def __init__(self, directory: Path, *, may_leave_out: bool) -> None:
        self.store = OutputStore(str(directory))
        self.loop = Steps()
        self.records: list[records.Record] = []
        self.num_untaken = 0
        loop: Any = self.loop
        self.watch = Watch(
            loop, self.store, self._take, CLIENT, REF, lambda _: True, may_leave_out=may_leave_out
        )

    def _take(self, _client: int, frame: bytes) -> None:
        message = wire.unpack(frame)
        parts = [bytes(message.payload)]
        if message.kind == wire.REPLY:
            told = decode(list[WatchMessage], message.payload)
            parts = [bytes(m.records) for m in told if isinstance(m, RecordsPrinted)]
        for part in parts:
            self.records += records.unpack(part)
            self.num_untaken += len(part)

    def print(self, data: bytes, rank: int = 0, kind: int = records.TEXT) -> None:
        for at in range(0, len(data), PIECE):
            part = data[at : at + PIECE]
            self.watch.offer(self.store.append(kind, "stdout", "gpus", rank, 1, part))
            self.loop.run()

    def catch_up(self) -> None:
        """Take what was sent until no more comes."""
        while self.num_untaken:
            num, self.num_untaken = self.num_untaken, 0
            self.watch.taken(num)
            self.loop.run()

    def text(self, rank: int = 0) -> str:
        """Return a rank's text; where lines were left out, a line ends, as it does in a display."""
        found = b""
        for record in self.records:
            if record.kind == records.LEFT_OUT and not found.endswith(b"\n"):
                found += b"\n"
            if record.kind == records.TEXT and record.rank == rank:
                found += record.data
        return found.decode()

    @property
    def left_out(self) -> list[int]:
        """How many lines were left out, each time that any were."""
        return [records.NUMBER.unpack(r.data)[0] for r in self.records if r.kind == records.LEFT_OUT]


def lines(rank: int, num: int) -> list[str]:
    return [f"rank {rank} step {i}" for i in range(num)]


def joined(found: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in found).encode()


@pytest.mark.parametrize("seed", range(4))
def test_whole_lines_are_left_out_and_counted(tmp_path: Path, seed: int) -> None:
    watched = Watched(tmp_path, may_leave_out=True)
    wanted = {rank: lines(rank, 300_000 + 1000 * seed) for rank in (0, 1)}
    data = {rank: joined(found) for rank, found in wanted.items()}
    step = 40_000 + seed  # pieces of the two ranks in turn, cut anywhere
    for at in range(0, max(map(len, data.values())), step):
        for rank in (0, 1):
            watched.print(data[rank][at : at + step], rank)
        if seed % 2 and at > 3 * KEEPS_UP_BYTES:  # it takes something meanwhile
            num = watched.num_untaken // 2
            watched.num_untaken -= num
            watched.watch.taken(num)
            watched.loop.run()
    watched.print(b"x", kind=records.RESULT)
    watched.catch_up()
    shown = {rank: watched.text(rank).splitlines() for rank in (0, 1)}
    num_pieces = 0
    for rank, found in shown.items():
        assert found[:1000] == wanted[rank][:1000] and found[-100:] == wanted[rank][-100:]
        num_pieces += len(set(found) - set(wanted[rank]))
    # The line before those that are left out is shown as far as it was sent; it may look like a whole one.
    total = sum(map(len, wanted.values()))
    too_many = sum(map(len, shown.values())) + sum(watched.left_out) - total
    assert num_pieces <= too_many <= 2 * len(watched.left_out)
    assert watched.left_out
    assert watched.records[-1].kind == records.RESULT, "how a cell ends is never left out"


def test_who_keeps_up_and_who_wants_all_is_sent_all(tmp_path: Path) -> None:
    data = joined(lines(0, 600_000))
    assert len(data) > WINDOW_BYTES
    watched = Watched(tmp_path / "all", may_leave_out=False)
    watched.print(data)
    watched.catch_up()
    assert watched.text().encode() == data and watched.left_out == []
    watched = Watched(tmp_path / "quick", may_leave_out=True)
    for at in range(0, len(data), KEEPS_UP_BYTES):
        watched.print(data[at : at + KEEPS_UP_BYTES])
        watched.catch_up()
    assert watched.text().encode() == data and watched.left_out == []


def test_displays_are_never_left_out(tmp_path: Path) -> None:
    watched = Watched(tmp_path, may_leave_out=True)
    for number in range(40):
        watched.print(joined(lines(0, 20_000)))
        watched.print(b"%d" % number, kind=records.DISPLAY)
    watched.catch_up()
    shown = [int(r.data) for r in watched.records if r.kind == records.DISPLAY]
    assert shown == list(range(40)) and sum(watched.left_out) > 0


def test_a_fold_says_how_many_were_left_out() -> None:
    fold = Fold([0, 1], max_rows=10, more_hint="%mesh logs")
    fold.feed(0, "stdout", "first\nhalf of a li")
    fold.leave_out(1_000_000)
    fold.feed(0, "stdout", "last\n")
    fold.feed(1, "stdout", "last\n")
    note = "... 1,000,000 lines not shown; all of them: %mesh logs"
    assert [row.text for row in fold.rows()] == ["first", "half of a li", note, "last"]
    assert fold.num_rows == 1_000_003
    assert fold.drain() == f"[0] first\n[0] half of a li\n{note}\n[0-1] last\n"
    fold.feed(0, "stdout", "".join(f"{i}\n" for i in range(20)))
    assert [row.text for row in fold.rows()][2:6:3] == [
        note,
        "... 14 lines not shown; all of them: %mesh logs",
    ]
    fold.feed(0, "stdout", "".join(f"more {i}\n" for i in range(2000)))  # more than it holds
    assert fold.num_rows == 1_002_023 and fold.rows()[5].text.startswith("... 2,014 lines not shown")


def test_a_fold_counts_them_where_they_are_hidden() -> None:
    fold = Fold([0], max_rows=10)
    for _ in range(2):
        fold.feed(0, "stdout", "".join(f"{i}\n" for i in range(20)))
        fold.leave_out(1_000_000)
    fold.feed(0, "stdout", "".join(f"{i}\n" for i in range(20)))
    assert [row.text for row in fold.rows()][5] == "... 2,000,050 lines not shown"
    fold.feed(0, "stdout", "".join(f"more {i}\n" for i in range(2000)))
    assert [row.text for row in fold.rows()][5] == "... 2,002,050 lines not shown"


def test_lines_by_rank_say_how_many_were_left_out() -> None:
    found = Lines([0], prefix=False, max_rows=10, more_hint="%mesh logs")
    found.feed(0, "stdout", "first\n")
    found.leave_out(1_000_000)
    found.feed(0, "stdout", "last\n")
    note = "... 1,000,001 lines not shown; all of them: %mesh logs"
    assert [row.text for row in found.rows()] == [note, "last"]
    assert found.num_rows == 1_000_002
