"""Cells: running one, watching one, and what ranks print."""

from __future__ import annotations

from monarch_nb._protocol.base import Plain, Record, Request
from monarch_nb._protocol.script import Script


class RunCell(Request[None], frozen=True):
    """Run a cell; whoever asks watches it.

    Attributes:
        ranks, procs: on which, by position.
        rank_set: the same as text, for the journal.
        number: of the notebook's cell; 0: it has none.
        context: the extent of the mesh, encoded.
        timeout_s: after which it's interrupted.
        rerun_of, replay_of: numbers of cells in the journal that it repeats; 0: none.
        profile: what to record of it.
        script: what runs, if that's a script; `source` is the line that says so.
    """

    source: str
    ranks: list[int]
    procs: list[int]
    rank_set: str
    group: str
    number: int
    context: bytes
    timeout_s: float | None = None
    rerun_of: int = 0
    replay_of: int = 0
    profile: Plain = None
    script: Script | None = None


class WatchCell(Request[None], frozen=True):
    """Show a cell from its beginning."""

    n: int


class WatchOutput(Request[None], frozen=True):
    """Send what ranks print, from a position of the journal, or the last bytes of it; then on, or not.

    Attributes:
        group: of which ranks; None: all.
        ranks: which of the group; None: all.
        origin: the cell or call that has printed it; None: all.
        actors: whether what cells have printed is left out.
        follow: whether to go on with what comes.
    """

    group: str | None = None
    ranks: list[int] | None = None
    origin: int | None = None
    tail_bytes: int = 0
    position: int | None = None
    actors: bool = False
    follow: bool = False


class Taken(Request[None], frozen=True):
    """So many bytes of what is watched (`watch`: its ref; 0: one's own calls) were taken."""

    watch: int
    bytes: int


class Unwatch(Request[None], frozen=True):
    """Watch something no longer."""

    watch: int


class OutputPart(Record, frozen=True):
    """A stretch of what ranks have printed.

    Attributes:
        data: records.
        begin, end: positions in the journal.
        start, now: positions of all that there is.
    """

    data: bytes
    begin: int
    end: int
    start: int
    now: int


class ReadOutput(Request[OutputPart], frozen=True):
    """Return a stretch of what ranks of a group have printed: the one after a position, or before one."""

    group: str
    ranks: list[int]
    after: int | None = None
    before: int | None = None
