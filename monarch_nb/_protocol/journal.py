"""The types of journal entries. An entry is one JSON object in the journal's file, which `_journal.entries`
writes and reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from monarch_nb._protocol.base import Record, Request
from monarch_nb._protocol.cells import CellFailure, CellOver
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.hang import RankStacks
from monarch_nb._protocol.healing import Report
from monarch_nb._protocol.kept import Kept
from monarch_nb._protocol.states import CellStatus


class CallRecord(Kept, frozen=True):
    """A call to an endpoint, or several as one.

    Attributes:
        when: start time, in seconds since the epoch.
        num_failed: number of ranks that failed.
        seconds: until each rank had answered.
    """

    when: float
    num_failed: int
    seconds: dict[int, float]


class EndpointCalls(CallRecord, frozen=True):
    """The calls of a program to one endpoint, as `actor.method`, since its last entry.

    Attributes:
        num: how many.
        each: the last ones, each by itself.
    """

    endpoint: str
    ranks: str
    num: int
    each: list[CallRecord] = []


class Environment(Kept, frozen=True):
    """The versions and settings that a mesh was started with.

    Attributes:
        id: short digest; equal for equal environments.
        packages: versions by name; empty: it isn't installed.
        host: of the controller.
        variables: environment variables that it was given.
    """

    id: str
    python: str
    packages: dict[str, str]
    host: str
    variables: dict[str, str]


class JournalEntry(Kept, frozen=True, omit_defaults=True):
    """An entry of the journal; which fields it has depends on its kind.

    Attributes:
        kind: an `EntryKind`; of a journal of another version perhaps another word.
        n: its number; of a cell also the origin of what that prints; 0: it isn't entered yet.
        who: the program that did it, in words.
        when, ended: in seconds since the epoch; None: it runs, or its mesh was killed.
        status: a `CellStatus`.
        source: source of a cell; otherwise a line that describes the action.
        text: text of an event that no program has asked for.
        ranks: as text.
        env: id of the mesh's environment.
        seconds: run times, by rank.
        number: of the notebook's cell; 0: it has none.
        position, end_position: of a cell's output in the journal.
        nolog: `source` isn't kept.
        script, always: whether the cell is a script; whether new ranks run it, too.
        rerun_of, replay_of: entries that the cell repeats; 0: none.
        seen: whether somebody has seen how the cell ended.
        reason, unfinished, failures, stopped, messages: as in `CellOver`.
        missing: why output of the cell may be missing.
        calls: of a program, by endpoint; `origin`: the program's cell that has made them.
        names, values: variables that were pushed or pulled; literals of those pushed that have one.
        dims, environment: what the mesh was started with.
        end: how a rank was lost.
        report: the report of a heal.
    """

    kind: str
    n: int = 0
    who: str = ""
    when: float = 0.0
    ended: float | None = None
    status: str = CellStatus.RUNNING
    source: str = ""
    text: str = ""
    ranks: str = ""
    group: str = ""
    env: str = ""
    seconds: dict[int, float] = {}
    number: int = 0
    position: int = 0
    end_position: int = 0
    nolog: bool = False
    script: bool = False
    always: bool = False
    rerun_of: int = 0
    replay_of: int = 0
    seen: bool = False
    reason: str = ""
    unfinished: dict[int, RankStacks] = {}
    failures: list[CellFailure] = []
    stopped: list[int] = []
    messages: list[str] = msgspec.field(default_factory=list, name="said")
    missing: str = ""
    calls: list[EndpointCalls] = []
    origin: int = 0
    names: list[str] = []
    values: dict[str, str] | None = None
    dims: dict[str, int] = {}
    environment: Environment | None = None
    end: RankExit | None = None
    report: Report | None = None

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> JournalEntry | None:
        """Return an entry of a file, without fields that another version has written otherwise; None if it
        is none.

        >>> JournalEntry.read({"n": 3, "kind": "cell", "ranks": 7, "number": 2}).number
        2
        """
        with suppress(ValueError):
            return cls.of(found)
        with suppress(ValueError):
            return cls.of({name: value for name, value in found.items() if cls._fits(name, value)})
        return None

    @classmethod
    def _fits(cls, name: str, value: Any) -> bool:
        with suppress(ValueError):
            cls.of({"kind": "", name: value})
            return True
        return False

    def row(self) -> EntryRow:
        """Return the entry as a front end shows it."""
        return EntryRow(
            self.n,
            self.kind,
            self.who,
            self.when,
            UNSET if self.ended is None else self.ended,
            UNSET if self.status == CellStatus.RUNNING else self.status,
            self.ranks or UNSET,
            self.source or UNSET,
            self.text or UNSET,
        )

    def over(self) -> CellOver:
        """Return the end of this entry's cell, as watchers of the cell are told."""
        return CellOver(
            CellStatus(self.status), self.reason, self.unfinished, self.failures, self.stopped, self.messages,
            self.seconds,
        )  # fmt: skip


class JournalSettings(Record, frozen=True):
    """The settings of the journal; `trouble`: why it isn't kept just now."""

    off: bool
    keep_s: float
    directory: str
    trouble: str


class SetJournal(Request[JournalSettings], frozen=True):
    """Switch the journal off or on, or set how long it is kept; None leaves a setting unchanged."""

    off: bool | None = None
    keep_s: float | None = None


class Note(Request[None], frozen=True):
    """Write an entry about actions of a program that needed no controller: calls, pushes. The controller adds
    the program.
    """

    entry: JournalEntry


class JournalPart(Record, frozen=True):
    """Entries, oldest first; how much output was dropped; why nothing is kept, if that's so."""

    entries: list[JournalEntry]
    num_dropped_bytes: int
    trouble: str
    keep_s: float


class GetHistory(Request[JournalPart], frozen=True):
    """Return the last entries."""

    limit: int


class GetEntry(Request[JournalEntry | None], frozen=True):
    """Return one entry, or None."""

    n: int


class Unseen(Record, frozen=True):
    """The cells whose end nobody has seen, and the journal position after which nobody has seen other
    output.
    """

    cells: list[JournalEntry]
    position: int | None


class GetMissed(Request[Unseen], frozen=True):
    """Return the cells that nobody has seen, and the position after which other output is unseen."""


class Seen(Request[None], frozen=True):
    """Take note that a program has shown how cells ended, or what else was missed."""

    cells: list[int] = []
    others: bool = False


class EntryRow(Record, frozen=True):
    """An entry of the journal, as a front end shows it; fields that an entry lacks are left out."""

    n: int
    kind: str
    who: str = ""
    when: float = 0.0
    ended: float | UnsetType | None = UNSET
    status: str | UnsetType = UNSET
    ranks: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    """Of an entry that is no cell."""
