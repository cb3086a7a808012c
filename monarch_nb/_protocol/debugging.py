"""Breakpoints: who stands where, and what those who stand are told."""

from __future__ import annotations

from monarch_nb._protocol.base import Plain, Record, Request
from monarch_nb._protocol.names import GroupRecord

# --- what ranks tell


class DebugStopped(Request[None], frozen=True):
    """A thread of a rank stands at a breakpoint, or has answered a line there.

    Attributes:
        key: its number in its process.
        n: the line that it answers; 0: none.
        text: the answer.
        where: thread, what, file, path, line, function, text, source, reason, error, origin.
    """

    key: int
    n: int
    text: str
    where: Plain
    mode: str


class DebugRunning(Request[None], frozen=True):
    """A thread steps on, and will come back."""

    key: int


class DebugLeft(Request[None], frozen=True):
    """A thread runs on; `text` answers line `n`."""

    key: int
    n: int
    text: str


class DebugLine(Record, frozen=True):
    """What a thread that stands is told to do; `key` and `n` as of `DebugStopped`."""

    key: int
    n: int
    line: str


# --- what programs ask

StopRow = Plain
"""id, rank, state, mode, and the fields of where it is."""


class DebugStops(Request[list[StopRow]], frozen=True):
    """Return who stands where."""

    group: str


class DebugGroups(Request[list[GroupRecord]], frozen=True):
    """Return the groups whose ranks can be debugged, or those of which one stands somewhere."""

    stopped_only: bool


class LineAnswers(Record, frozen=True):
    """What stops have answered to a line, by id; those that haven't come back; who stands where now."""

    answers: dict[int, str]
    left: list[int]
    stops: list[StopRow]


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
    """Whether breakpoints are skipped, errors stop, and for how long nobody need be there."""

    skip: bool
    on_error: bool
    abandoned_s: float


class DebugSet(Request[DebugSettings], frozen=True):
    """Take settings, and return all; None leaves one as it is."""

    skip: bool | None = None
    on_error: bool | None = None
    abandoned_s: float | None = None


class WatchDebug(Request[None], frozen=True):
    """Tell who stands where, now and whenever that changes."""

    group: str


class UnwatchDebug(Request[None], frozen=True):
    """Tell no longer."""

    watch: int
