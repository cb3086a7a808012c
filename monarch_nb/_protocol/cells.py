"""Types of requests and events about cells: running and watching them, and the output of ranks."""

from __future__ import annotations

import msgspec

from monarch_nb._protocol.base import Record, Request
from monarch_nb._protocol.hang import RankStacks
from monarch_nb._protocol.profiles import ProfileOptions
from monarch_nb._protocol.script import Script
from monarch_nb._protocol.states import CellStatus


class RunCell(Request[None], frozen=True):
    """Run a cell; whoever asks watches it.

    Attributes:
        ranks, procs: the ranks that run it, and their processes, by position.
        rank_set: the ranks as text, for the journal.
        number: of the notebook's cell; 0: it has none.
        context: the extent of the mesh, encoded.
        timeout_s: seconds after which the cell is interrupted.
        rerun_of, replay_of: numbers of cells in the journal that it repeats; 0: none.
        profile: what to record in a profile.
        script: the script that runs, if it is one; `source` is the line that starts it.
        always: whether ranks that are started later run it, too, once it has ended well.
        may_leave_out: whether lines may be left out where whoever asks doesn't keep up.
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
    profile: ProfileOptions | None = None
    script: Script | None = None
    always: bool = False
    may_leave_out: bool = False


class CellWork(Record, frozen=True):
    """The order to a rank to run a cell; fields as in `RunCell`."""

    source: str
    number: int
    profile: ProfileOptions | None = None
    script: Script | None = None


class ForgetDefinitions(Request[int], frozen=True):
    """Run no cells on ranks that come from now on; answers how many there were."""


class WatchCell(Request[None], frozen=True):
    """Show a cell from its beginning; `may_leave_out` as in `RunCell`."""

    n: int
    may_leave_out: bool = False


class WatchOutput(Request[None], frozen=True):
    """Send what ranks print, from a position of the journal or from the last bytes of it on; with `follow`,
    also what they print later.

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
    """Take note that a watcher has taken so many bytes, and may be sent more; `watch`: the ref of what is
    watched, or 0: the program's own calls."""

    watch: int
    bytes: int


class Unwatch(Request[None], frozen=True):
    """Watch something no longer."""

    watch: int


class OutputPart(Record, frozen=True):
    """A part of the output of ranks.

    Attributes:
        data: records.
        begin, end: positions in the journal.
        start, now: positions of the beginning and the end of all output.
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


# --- messages to watchers, sent in lists of `WatchMessage`


class RecordsPrinted(Record, frozen=True, tag=True):
    """Records of what was printed, as the journal has them."""

    records: bytes


class CellBegan(Record, frozen=True, tag=True):
    """The cell has its number in the journal."""

    n: int


class CaughtUp(Record, frozen=True, tag=True):
    """A mark in what a client watches: what follows has just happened; until now it came from the journal."""


class RankDone(Record, frozen=True, tag=True):
    """The notice that the cell has ended well on a rank, with no value to show."""

    rank: int
    seconds: float


class CellMessage(Record, frozen=True, tag=True):
    """A message of the controller about the cell."""

    text: str


class CellWaits(Record, frozen=True, tag=True):
    """The cell waits for others, as the text says; an empty one: it doesn't any more."""

    text: str


class CellFailure(Record, frozen=True):
    """The failure of a cell on one rank; `type`: the exception's class, or "lost"."""

    rank: int
    type: str
    message: str
    when: float


class CellOver(Record, frozen=True, tag=True):
    """The end of a cell; but for the tag, the cell's entry in the journal has these fields, too.

    Attributes:
        reason: why it was made to end (`EndReason`, or `timeout SECONDS`); empty if it ended by itself.
        unfinished: what is known of ranks that were given up.
        failures: in the order of their causes.
        stopped: ranks that were interrupted.
        messages: of the controller, to people.
        seconds: run times, by rank.
    """

    status: CellStatus
    reason: str
    unfinished: dict[int, RankStacks]
    failures: list[CellFailure]
    stopped: list[int]
    messages: list[str] = msgspec.field(name="said")
    seconds: dict[int, float]


WatchMessage = RecordsPrinted | CellBegan | CaughtUp | RankDone | CellMessage | CellWaits | CellOver
