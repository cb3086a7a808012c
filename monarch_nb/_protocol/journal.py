"""The journal: what was done by whom. An entry is what stands in its file: JSON, described in
`_journal.entries`.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from monarch_nb._protocol.base import Plain, Record, Request
from monarch_nb._protocol.states import EntryKind


class JournalSettings(Record, frozen=True):
    """The settings of the journal; `trouble`: why it isn't kept just now."""

    off: bool
    keep_s: float
    directory: str
    trouble: str


class SetJournal(Request[JournalSettings], frozen=True):
    """Turn the journal off or on, or say for how long it's kept; None leaves that as it is."""

    off: bool | None = None
    keep_s: float | None = None


class Note(Request[None], frozen=True):
    """Enter what a program has done without the controller: calls, pushes. `fields` are the entry's."""

    kind: EntryKind
    fields: dict[str, Plain]


class JournalPart(Record, frozen=True):
    """Entries, oldest first; how much output was dropped; why nothing is kept, if that's so."""

    entries: list[dict[str, Plain]]
    num_dropped_bytes: int
    trouble: str
    keep_s: float


class GetHistory(Request[JournalPart], frozen=True):
    """Return the last entries."""

    limit: int


class GetEntry(Request[dict[str, Plain] | None], frozen=True):
    """Return one entry, or None."""

    n: int


class Unseen(Record, frozen=True):
    """Cells that nobody has seen end, and from where in the journal on nobody has seen other output."""

    cells: list[dict[str, Plain]]
    position: int | None


class GetMissed(Request[Unseen], frozen=True):
    """Return what nobody has seen."""


class Seen(Request[None], frozen=True):
    """A program has shown how cells ended, or what else was missed."""

    cells: list[int] = []
    others: bool = False


class EntryRow(Record, frozen=True):
    """An entry of the journal, as a front end shows it; what an entry has not is left out."""

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
