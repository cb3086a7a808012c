"""Types of the events of cells, and of the effects that the states of cells return: plain data.

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
    """The event that a program has submitted a cell; `procs` by rank."""

    n: int
    group: str
    procs: RankProcs


class EndedWell(Struct, frozen=True):
    """The event that a cell has ended on a rank without an error or a value to show."""

    n: int
    rank: int
    seconds: float


class EndedWith(Struct, frozen=True):
    """The event that a cell has ended on a rank with a value or an error.

    Attributes:
        body: the result as the journal keeps it (JSON).
        failure: the error, if the result is one.
    """

    n: int
    rank: int
    seconds: float
    body: bytes
    failure: CellFailure | None = None


class RankGone(Struct, frozen=True):
    """The event that a rank's process has ended."""

    end: RankExit


class EndWanted(Struct, frozen=True):
    """The event that a cell shall be ended: by its user, because it has failed elsewhere, or because its time
    limit has passed (`EndReason`, or `timeout SECONDS`).
    """

    n: int
    reason: str


class StepDue(Struct, frozen=True):
    """The event that the waiting time of an escalation step is over."""

    n: int
    level: int


class Aborted(Struct, frozen=True):
    """The event that ranks have answered a request to abort collectives, or that their time to answer is
    over; `num`: on how many something was aborted.
    """

    n: int
    num: int


class StacksFound(Struct, frozen=True):
    """The event with what is known about unresponsive ranks, by rank; see `StackRequests.stacks`."""

    n: int
    found: dict[int, Plain]


class GroupsRemade(Struct, frozen=True):
    """The event that process groups were created again after an abort, or that this failed; `text` describes
    it to people.
    """

    n: int
    text: str


class CellNotice(Struct, frozen=True):
    """The event with a message about the cell that runs on a process."""

    proc: int
    text: str


class TellDone(Struct, frozen=True):
    """The event that watchers are due to be told which ranks have ended well."""

    n: int


class MeshEnds(Struct, frozen=True):
    """The event that the mesh ends, with the way in which it ends."""

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
    """The effect: mark the state of ranks as changed."""

    procs: tuple[int, ...]


class Send(Struct, frozen=True):
    """The effect: send a cell to ranks; pairs of proc and rank."""

    n: int
    receivers: list[tuple[int, int]]


class Tell(Struct, frozen=True):
    """The effect: send a message to the watchers of a cell."""

    n: int
    message: WatchMessage


class Write(Struct, frozen=True):
    """The effect: write a rank's result into the journal."""

    n: int
    group: str
    rank: int
    body: bytes


class After(Struct, frozen=True):
    """The effect: deliver an event after a delay."""

    delay_s: float
    event: Event


class Shortly(Struct, frozen=True):
    """The effect: deliver an event soon, together with others."""

    event: Event


class Interrupt(Struct, frozen=True):
    """The effect: send the interrupt to ranks that run a cell."""

    n: int
    procs: RankProcs


class Abort(Struct, frozen=True):
    """The effect: abort collectives on ranks; `Aborted` follows in any case."""

    n: int
    procs: RankProcs


class Look(Struct, frozen=True):
    """The effect: find out where ranks are; `StacksFound` follows in any case."""

    n: int
    procs: RankProcs


class Remake(Struct, frozen=True):
    """The effect: create process groups again; `GroupsRemade` follows in any case."""

    n: int
    procs: RankProcs


class Over(Struct, frozen=True):
    """The effect: a cell is over: complete its journal entry, drop it, and tell its watchers, unless the mesh
    ends, of which they are told anyway.
    """

    n: int
    summary: CellOver
    tells_watchers: bool = True


Effect = Touch | Send | Tell | Write | After | Shortly | Interrupt | Abort | Look | Remake | Over
