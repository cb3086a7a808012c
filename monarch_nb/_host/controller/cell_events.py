"""Types of what happens to cells (events), and of what is to be done about it (effects): plain data.

`cell_states.CellStates` takes events and returns effects; `cells.Cells` does them.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from monarch_nb._protocol.base import Plain
from monarch_nb._protocol.cells import CellFailure, CellOver, WatchMessage
from monarch_nb._protocol.exits import RankExit

RankProcs = Mapping[int, int]
"""Proc ids by rank."""

# --- events


class Submitted(Struct, frozen=True):
    """Somebody wants a cell to run; `procs` by rank."""

    n: int
    group: str
    procs: RankProcs


class EndedWell(Struct, frozen=True):
    """A cell has ended on a rank, with no value to show."""

    n: int
    rank: int
    seconds: float


class EndedWith(Struct, frozen=True):
    """A cell has ended on a rank, with a value or an error.

    Attributes:
        body: the result as the journal keeps it (JSON).
        failure: the error, if it is one.
    """

    n: int
    rank: int
    seconds: float
    body: bytes
    failure: CellFailure | None = None


class RankGone(Struct, frozen=True):
    """A rank's process has ended."""

    end: RankExit


class EndWanted(Struct, frozen=True):
    """A cell shall end: its user wants that, it has failed elsewhere, or its time is up (`EndReason`, or
    `timeout SECONDS`).
    """

    n: int
    reason: str


class StepDue(Struct, frozen=True):
    """A step of an escalation has had its time."""

    n: int
    level: int


class Aborted(Struct, frozen=True):
    """Ranks have answered that they abort collectives, or had their time to; `num` had any."""

    n: int
    num: int


class StacksFound(Struct, frozen=True):
    """Says what is known about ranks that don't react; by rank, see `StackRequests.stacks`."""

    n: int
    found: dict[int, Plain]


class GroupsRemade(Struct, frozen=True):
    """Process groups were made anew after an abort, or can't be; `text` says so to people."""

    n: int
    text: str


class CellNotice(Struct, frozen=True):
    """There's something to say about the cell that runs on a process."""

    proc: int
    text: str


class TellDone(Struct, frozen=True):
    """It's time to tell who watches which ranks have ended well."""

    n: int


class MeshEnds(Struct, frozen=True):
    """The mesh ends, and how."""

    how: str


Event = (
    Submitted
    | EndedWell
    | EndedWith
    | RankGone
    | EndWanted
    | StepDue
    | Aborted
    | StacksFound
    | GroupsRemade
    | CellNotice
    | TellDone
    | MeshEnds
)

# --- effects


class Touch(Struct, frozen=True):
    """The state of ranks has changed."""

    procs: tuple[int, ...]


class Send(Struct, frozen=True):
    """Have ranks run a cell; pairs of proc and rank."""

    n: int
    receivers: list[tuple[int, int]]


class Tell(Struct, frozen=True):
    """Send a message to the watchers of a cell."""

    n: int
    message: WatchMessage


class Write(Struct, frozen=True):
    """Put a rank's result into the journal."""

    n: int
    group: str
    rank: int
    body: bytes


class After(Struct, frozen=True):
    """Let an event happen after some time."""

    delay_s: float
    event: Event


class Shortly(Struct, frozen=True):
    """Let an event happen soon, together with others."""

    event: Event


class Interrupt(Struct, frozen=True):
    """Send the interrupt to ranks that run a cell."""

    n: int
    procs: RankProcs


class Abort(Struct, frozen=True):
    """Abort collectives on ranks; `Aborted` follows in any case."""

    n: int
    procs: RankProcs


class Look(Struct, frozen=True):
    """Find out where ranks are; `StacksFound` follows in any case."""

    n: int
    procs: RankProcs


class Remake(Struct, frozen=True):
    """Make process groups anew; `GroupsRemade` follows in any case."""

    n: int
    procs: RankProcs


class Over(Struct, frozen=True):
    """A cell is over: complete its entry in the journal, forget it, and tell those who watch unless the mesh
    ends, which they hear of anyway.
    """

    n: int
    summary: CellOver
    tells_watchers: bool = True


Effect = Touch | Send | Tell | Write | After | Shortly | Interrupt | Abort | Look | Remake | Over
