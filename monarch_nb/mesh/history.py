"""The journal of a mesh: what ran on it, what was missed, logs, and its export as a notebook or a script."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb._client.feed import Feed, Watcher
from monarch_nb._display.fold import Fold
from monarch_nb._protocol.cells import Unwatch, WatchCell, WatchOutput
from monarch_nb._protocol.journal import (
    CallRecord,
    EntryRow,
    GetEntry,
    GetHistory,
    GetMissed,
    JournalEntry,
    JournalSettings,
    SetJournal,
)
from monarch_nb._protocol.shown import CellEnd, Shown
from monarch_nb._protocol.states import CellStatus, EntryKind
from monarch_nb._shape import read_ranks
from monarch_nb._units import size_text, time_text
from monarch_nb.actor.checked import checks_arguments
from monarch_nb.actor.handle import placement_of, session_of, transport_of
from monarch_nb.exceptions import MeshUsageError, RankFailure, fold_alike
from monarch_nb.mesh.cell_run import CellRun
from monarch_nb.mesh.export import export
from monarch_nb.mesh.log_page import read_page

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.mesh.export import Exported

TAIL_BYTES = 1 << 20
_MAX_SHOWN = 70


@dataclass(frozen=True)
class Entry:
    """One entry of the journal.

    Attributes:
        n: its number.
        kind: start, cell, calls, variables, command, lost or note.
        number: the notebook's number of a cell, as in In[3].
        ended: None while it runs.
        status: ok, error, interrupted, lost; running; a cell whose end nobody has seen also has `unseen`
            true.
        seconds: run time of a cell by rank.
        env: id of the environment that the mesh was started with.
        record: the complete entry.
    """

    n: int
    kind: str
    who: str
    when: float
    source: str = ""
    ranks: str = ""
    number: int = 0
    ended: float | None = None
    status: str = CellStatus.RUNNING
    seconds: Mapping[int, float] = field(default_factory=dict)
    env: str = ""
    record: JournalEntry = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, record: JournalEntry) -> Entry:
        """Make an entry from a journal entry."""
        return cls(
            n=record.n,
            kind=record.kind,
            who=record.who,
            when=record.when,
            source=record.source or record.text,
            ranks=record.ranks,
            number=record.number,
            ended=record.ended,
            status=record.status,
            seconds=record.seconds,
            env=record.env,
            record=record,
        )

    @property
    def ran_on(self) -> tuple[int, ...]:
        """The ranks that it ran on, by their numbers then: the mesh may have been resized since."""
        return read_ranks(self.ranks)

    def width(self, mesh: Mesh) -> int:
        """Return the number of ranks to show it among: those of the mesh, and those that have left since."""
        return max(len(mesh), *(rank + 1 for rank in self.ran_on), 1)

    @property
    def details(self) -> Mapping[str, Any]:
        """All known fields, as on disk; empty ones are left out."""
        return self.record.plain()

    def columns(self) -> tuple[str, ...]:
        """Return the entry's columns: number, time, what, ranks, status, duration, source, who."""
        took = (
            ""
            if self.ended is None
            else time_text(max(self.seconds.values(), default=self.ended - self.when))
        )
        what = f"In[{self.number}]" if self.number else self.kind
        first = next((x for x in self.source.splitlines() if x.strip()), "")
        shown = first if len(first) <= _MAX_SHOWN else first[: _MAX_SHOWN - 1] + "…"
        more = self.source.count("\n", 0, len(self.source.rstrip()))
        extra = f" (+{more} lines)" if more else ""
        if self.kind == EntryKind.CALLS:
            calls = ", ".join(f"{each.endpoint} x{each.num}" for each in self.record.calls)
            shown = f"{calls}  |  {shown}"
        return (
            f"#{self.n}",
            _clock(self.when),
            what,
            f"[{self.ranks}]",
            self.status,
            took,
            f"{shown}{extra}",
            f"— {self.who}",
        )

    def line(self) -> str:
        """Return the entry as one line."""
        return _aligned([self.columns()])[0]

    def text(self) -> str:
        """Return the complete entry as text: the line, the source, each rank's run time; of calls, each
        separately; equal failures merged.
        """
        parts = [self.line(), *(f"    {line}" for line in self.source.splitlines())]
        if self.seconds and self.kind != EntryKind.CALLS:
            parts.append(f"seconds: {_by_rank(self.seconds)}")
        for call in self.record.calls:
            parts.append(f"{call.endpoint} x{call.num} on ranks {call.ranks}")
            parts += [f"    {_call_line(each)}" for each in call.each]
        failures = enumerate(self.record.failures)
        alike = fold_alike([RankFailure((f.rank,), f.type, f.message, first=i == 0) for i, f in failures])
        parts += [failure.headline() for failure in alike]
        return "\n".join(parts)


_DAY_S = 86400.0
_TOOK, _SOURCE = 5, 6
"""Columns that are right-aligned, and not padded beyond `_MAX_SHOWN`."""


def _clock(when: float) -> str:
    """Return a time of today, or a date and a time."""
    began = time.localtime(when)
    return time.strftime("%H:%M:%S" if abs(time.time() - when) < _DAY_S else "%Y-%m-%d %H:%M:%S", began)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    widths = [width if i != _SOURCE else min(width, _MAX_SHOWN) for i, width in enumerate(widths)]
    return [
        "  ".join(
            cell.rjust(width) if i == _TOOK else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _by_rank(seconds: Mapping[Any, float]) -> str:
    return ", ".join(f"[{rank}] {each:.3g}" for rank, each in seconds.items()) or "unanswered"


def _call_line(each: CallRecord) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(each.when)) + f"{each.when % 1:.3f}"[1:]
    failed = f", {each.num_failed} failed" if each.num_failed else ""
    return f"{clock} seconds: {_by_rank(each.seconds)}{failed}"


class Entries(list[Entry]):
    """A list of journal entries, displayed as lines."""

    note = ""

    def text(self) -> str:
        """Return a line for each. Who ran them stands above the lines if it was one client."""
        rows, heads = [entry.columns() for entry in self], [self.note] if self.note else []
        if len({entry.who for entry in self}) == 1 and len(rows) > 1:
            heads.append(f"(all by {self[0].who})")
            rows = [row[:-1] for row in rows]
        return "\n".join([*heads, *_aligned(rows)]) or "nothing has run"

    __str__ = text

    def __repr__(self) -> str:
        return self.text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.text())


@dataclass(frozen=True)
class Missed:
    """The cells and the output that nobody has seen yet.

    Attributes:
        cells: entries of cells that have ended unseen, or run with nobody watching.
        position: position in the journal after which output of actors is unseen; None: all has been seen.
    """

    cells: tuple[Entry, ...]
    position: int | None

    def summary(self) -> str:
        """Return a summary in a line: `2 cells ended, 1 runs`; empty if there's nothing."""
        ended = sum(e.ended is not None for e in self.cells)
        running = len(self.cells) - ended
        failed = sum(e.status == CellStatus.ERROR for e in self.cells)
        parts = []
        if ended:
            parts.append(
                f"{ended} cell{'s' * (ended > 1)} ended meanwhile" + (f", {failed} failed" if failed else "")
            )
        if running:
            parts.append(f"{running} cell{'s still run' if running > 1 else ' is still running'}")
        return "; ".join(parts)


@checks_arguments()
class History:
    """The journal of a mesh, as its clients read it."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def entries(self, limit: int = 1000) -> Entries:
        """Return the last entries of the journal, oldest first."""
        found = session_of(self._mesh).request(GetHistory(limit))
        entries = Entries(Entry.of(row) for row in found.entries)
        dropped, trouble = found.num_dropped_bytes, found.trouble
        if trouble:
            entries.note = f"(the journal isn't written: {trouble})"
        elif dropped:
            entries.note = (
                f"(the oldest {size_text(dropped)} of output were dropped: the journal is at its limit)"
            )
        else:
            entries.note = (
                f"(sources and output of cells are kept on disk for {found.keep_s / 86400:g} days: "
                "%mesh set journal DAYS|off; not of a cell whose first line has # nolog)"
            )
        return entries

    def last_lines(self, ranks: str | Sequence[int] = "all", limit: int = 50) -> list[str]:
        """Return the last lines that ranks have printed, the oldest first.

        Example:
            >>> mesh.last_lines("0", 2)                   # doctest: +SKIP
            ['loss 0.41', 'loss 0.39']
        """
        page = read_page(self._mesh, self._mesh.select(ranks), limit=limit)
        return [line.text for line in page.lines[-limit:]]

    def settings(self, *, off: bool | None = None, keep_s: float | None = None) -> JournalSettings:
        """Turn the journal off or on, or set how long it is kept; return the present settings."""
        return session_of(self._mesh).request(SetJournal(off, keep_s))

    def rows(self, limit: int = 1000) -> list[EntryRow]:
        """Return the last entries as front ends show them, oldest first."""
        found = session_of(self._mesh).request(GetHistory(limit))
        return [entry.row() for entry in found.entries]

    def entry(self, n: int) -> Entry:
        """Return an entry by its number.

        Raises:
            MeshUsageError: if there's none.
        """
        row = session_of(self._mesh).request(GetEntry(n))
        if row is None:
            raise MeshUsageError(
                f"the journal of mesh {self._mesh.name!r} has no entry #{n}; see %mesh history"
            )
        return Entry.of(row)

    def missed(self) -> Missed:
        """Return the cells and output that nobody has seen so far."""
        found = session_of(self._mesh).request(GetMissed())
        return Missed(
            tuple(Entry.of(row) for row in found.cells if row.group == placement_of(self._mesh).group),
            found.position,
        )

    def replay(self, entry: Entry, watcher: Watcher | None) -> CellRun:
        """Show a cell from its beginning: its output so far at once, the rest as it arrives."""
        run = CellRun(self._mesh, entry.ran_on, watcher)
        run.result.reason = entry.record.reason
        return run.start(WatchCell(entry.n, run.may_leave_out))

    def output(
        self,
        watcher: Watcher,
        *,
        ranks: Sequence[int] | None = None,
        tail_bytes: int = TAIL_BYTES,
        position: int | None = None,
        actors: bool = False,
        follow: bool = False,
    ) -> Feed:
        """Send kept output to a watcher; the feed is ready when all has arrived (with `follow`, never)."""
        feed = Feed(transport_of(self._mesh), watcher)
        wanted = WatchOutput(
            group=placement_of(self._mesh).group,
            ranks=None if ranks is None else list(ranks),
            tail_bytes=tail_bytes,
            position=position,
            actors=actors,
            follow=follow,
        )
        session_of(self._mesh).watch(feed, wanted)
        return feed

    def logs(
        self,
        ranks: Sequence[int],
        *,
        grep: str | None = None,
        tail_bytes: int = TAIL_BYTES,
        follow: bool = False,
    ) -> Iterator[str]:
        """Yield the output of ranks, folded by rank set; with `follow`, continuously.

        Args:
            grep: only lines that match this regular expression.
            tail_bytes: about how much of the journal's end to look at.
        """
        lines = LogLines(ranks, grep)
        feed = self.output(lines, ranks=ranks, tail_bytes=tail_bytes, follow=follow)
        reader = transport_of(self._mesh).reader
        try:
            while not reader.wait(feed, time.monotonic() + 0.1):
                text = lines.drain()
                if text:
                    yield text
            lines.finish()
            text = lines.drain()
            if text:
                yield text
            feed.check_fault()
        finally:
            if not feed.ready:
                session_of(self._mesh).tell(Unwatch(feed.ref))
                feed.complete()

    def export(self, path: str | Path) -> Exported:
        """Write the cells of the journal, and the variables pushed to them, to a notebook (.ipynb, with
        output) or a script (.py, for torchrun).

        Returns:
            what was written, and which variables are missing: the journal has numbers that were pushed, but
            no tensors and no text.

        Raises:
            MeshUsageError: if the file can't be written.
        """
        return export(path, self._mesh, self.entries(1_000_000))


class LogLines:
    """The collector of matching lines of ranks, folded. The reading thread adds lines, another thread drains
    them.
    """

    def __init__(self, ranks: Sequence[int], grep: str | None) -> None:
        self._fold = Fold(ranks, max_rows=None, prefix=True)
        try:
            self._pattern = re.compile(grep) if grep else None
        except re.error as error:
            raise MeshUsageError(f"--grep takes a regular expression; {grep!r} is none: {error}") from None
        self._lock = threading.Lock()
        self._partial: dict[tuple[int, str], str] = {}
        self._inside: dict[tuple[int, str], bool] = {}
        """Whether a rank has begun a line that it hasn't ended."""

    def text(self, rank: int, stream: str, text: str) -> None:
        """Collect the lines of a rank's output text that match the pattern."""
        with self._lock:
            self._inside[rank, stream] = not text.endswith("\n")
            if self._pattern is None:
                self._fold.feed(rank, stream, text)
                return
            whole, newline, rest = (self._partial.pop((rank, stream), "") + text).rpartition("\n")
            self._partial[rank, stream] = rest
            for line in whole.split("\n") if newline else ():
                if self._pattern.search(line):
                    self._fold.feed(rank, stream, line + "\n")

    def display(self, rank: int, shown: Shown) -> None:
        """Collect the plain text of a rank's rich display, on lines of its own."""
        if shown.data:
            start = "\n" if self._inside.get((rank, "stdout")) else ""
            self.text(rank, "stdout", f"{start}{shown.data.get('text/plain', '')}\n")

    def ended(self, rank: int, end: CellEnd) -> None:
        """Ignore the end of a cell: it isn't in the logs."""

    def ended_well(self, seconds: Mapping[int, float]) -> None:
        """Ignore the end of a cell: it isn't in the logs."""

    def waits(self, text: str) -> None:
        """Do nothing: only lines are shown."""

    def message(self, text: str) -> None:
        """Collect a message of the host process about missing output."""
        with self._lock:
            self._fold.say(text)

    def finish(self) -> None:
        """Turn unfinished lines into complete ones."""
        with self._lock:
            for (rank, stream), text in self._partial.items():
                if text and self._pattern is not None and self._pattern.search(text):
                    self._fold.feed(rank, stream, text + "\n")
            self._fold.finish()

    def drain(self) -> str:
        """Return the new text."""
        with self._lock:
            return self._fold.drain()
