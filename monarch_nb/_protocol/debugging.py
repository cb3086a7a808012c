"""Types about breakpoints: the threads of ranks that are stopped, and the commands sent to them."""

from __future__ import annotations

from monarch_nb._protocol.base import Record, Request
from monarch_nb._protocol.names import GroupRecord
from monarch_nb._protocol.states import StopMode, StopReason, StopState


class StopPlace(Record, frozen=True):
    """The place where a thread is stopped in the debugger; the fields are those of `Stop`."""

    thread: str
    what: str
    file: str
    line: int
    function: str
    text: str = ""
    reason: StopReason = StopReason.BREAKPOINT
    error: str = ""
    path: str = ""
    source: tuple[tuple[int, str], ...] = ()
    origin: int = 0


class Stop(Record, frozen=True):
    """A thread of a rank that is stopped in the debugger."""

    id: int
    """Its number in the mesh, while the thread is stopped there."""
    rank: int
    thread: str
    """"main", or the actor's name."""
    what: str
    """"cell #3", "Trainer.step"."""
    file: str
    """"In [3]", or a path."""
    line: int
    function: str
    text: str = ""
    """The source line."""
    state: StopState = StopState.STOPPED
    """running: a step hasn't come back yet."""
    reason: StopReason = StopReason.BREAKPOINT
    error: str = ""
    """The error after which it stopped."""
    path: str = ""
    """Path of the file, as Python knows it."""
    source: tuple[tuple[int, str], ...] = ()
    """Lines around it, with their numbers."""
    origin: int = 0
    """The cell or call that the thread executes."""
    mode: StopMode = StopMode.PDB
    """Kind of lines that it accepts."""


# --- events of ranks


class DebugStopped(Request[None], frozen=True):
    """Take note that a thread of a rank stands at a breakpoint, or has answered a line there.

    Attributes:
        key: its number in its process.
        n: the line that it answers; 0: none.
        text: the answer.
    """

    key: int
    n: int
    text: str
    where: StopPlace
    mode: StopMode


class DebugRunning(Request[None], frozen=True):
    """Take note that a stopped thread steps on, and will come back."""

    key: int


class DebugLeft(Request[None], frozen=True):
    """Take note that a stopped thread runs on; `text` answers line `n`."""

    key: int
    n: int
    text: str


class DebugLine(Record, frozen=True):
    """A line for the debugger of a stopped thread; `key` and `n` as in `DebugStopped`."""

    key: int
    n: int
    line: str


# --- requests of programs


class DebugStops(Request[list[Stop]], frozen=True):
    """Return the threads of a group that stand in the debugger."""

    group: str


class DebugGroups(Request[list[GroupRecord]], frozen=True):
    """Return the groups whose ranks can be debugged, or those of which one stands somewhere."""

    stopped_only: bool


class LineAnswers(Record, frozen=True):
    """The answers of stops to a line, by id; the stops that haven't come back; and all stops now."""

    answers: dict[int, str]
    left: list[int]
    stops: list[Stop]


class DebugCommand(Request[LineAnswers], frozen=True):
    """Have some stops do what a line says; answered when all have, or the time is up."""

    ids: list[int]
    line: str
    timeout_s: float


class DebugPostMortem(Request[None], frozen=True):
    """Have ranks stop where they've raised last; answered once those that have something to show stand
    there.
    """

    procs: list[int]


class DebugBreak(Request[dict[int, str]], frozen=True):
    """Set a breakpoint on ranks (proc by rank); without a file, clear all. Answers with what each says of
    it.
    """

    procs: dict[int, int]
    file: str
    line: int
    condition: str


class DebugSettings(Record, frozen=True):
    """The debugger's settings: whether breakpoints are skipped, whether errors stop, and after how many
    seconds without a client stopped ranks run on.
    """

    skip: bool
    on_error: bool
    abandoned_s: float


class DebugSet(Request[DebugSettings], frozen=True):
    """Change settings of the debugger, and return all; None leaves one as it is."""

    skip: bool | None = None
    on_error: bool | None = None
    abandoned_s: float | None = None


class WatchDebug(Request[None], frozen=True):
    """Send the sender the stops of a group, now and whenever they change, as answers to this request."""

    group: str


class UnwatchDebug(Request[None], frozen=True):
    """Stop sending stops; `watch`: the ref of `WatchDebug`."""

    watch: int
