"""Types that describe where ranks are and what they wait for, as seen by the ranks and their host
processes.
"""

from __future__ import annotations

from typing import TypedDict

from monarch_nb._protocol.base import Record, Request
from monarch_nb._protocol.states import WaitKind


class RankStacks(TypedDict, total=False):
    """The stacks of a rank's threads, and how they were found.

    Attributes:
        stacks: text by name of thread; None: they couldn't be taken.
        how: how they were found: asked, faulthandler, py-spy.
        missing: the missing part, and why.
        process: the kernel's state of the process, if that is unusual.
    """

    stacks: dict[str, str] | None
    how: str
    missing: str
    process: str


class Operation(Record, frozen=True):
    """An operation of a process group that a thread is in.

    Attributes:
        group: its name; empty if unknown.
        ranks: members of the group, by their numbers in the default group.
        sequence: number among the group's operations; 0 if unknown.
        shape, dtype: of its (first) tensor.
        since: when it began, if known.
        peer: the other rank of a send or recv.
        num_ranks: of a group that is being made; -1: it isn't.
    """

    name: str
    group: str = ""
    ranks: tuple[int, ...] = ()
    sequence: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    since: float | None = None
    peer: int | None = None
    num_ranks: int = -1


class RecordedOperation(Record, frozen=True):
    """An operation as torch's flight recorder knows it; `group`: torch's own name of it."""

    name: str
    group: str
    sequence: int
    since: float
    state: str
    shape: tuple[int, ...] | None
    dtype: str


class GroupProgress(Record, frozen=True):
    """A process group, and how many of its operations a rank has entered."""

    ranks: tuple[int, ...]
    sequence: int


class Blocked(Record, frozen=True):
    """The reason why a thread waits, and the same in words."""

    kind: WaitKind
    text: str


class AwaitedCall(Record, frozen=True):
    """A call whose answers a thread waits for, and the procs that owe one."""

    what: str
    ref: int
    procs: tuple[int, ...]


class ThreadFacts(Record, frozen=True):
    """The state of a thread that runs user code.

    Attributes:
        label: cell, function, or an actor's method.
        actor: its id; 0: the main thread.
        origin: number of the cell that it belongs to.
        serves, queued: calls that it handles, and that wait for it, as (sender, ref).
        cell, file, line, function, source: the user's innermost line.
        doing: what that has called.
        at, cpu_s: values that differ in the next look if the thread makes progress.
    """

    label: str
    actor: int
    origin: int
    serves: tuple[tuple[int, int], ...]
    queued: tuple[tuple[int, int], ...]
    cell: int | None
    file: str
    line: int
    function: str
    source: str
    doing: str
    operation: Operation | None
    blocked: Blocked | None
    calls: tuple[AwaitedCall, ...]
    at: tuple[tuple[str, int], ...]
    cpu_s: float


class HangFacts(Record, frozen=True):
    """The facts about one rank that say what it waits for.

    Attributes:
        groups: its process groups, by name.
        dist_rank: its rank in the default one, if there is one.
        on_device: what has been begun on its GPU and isn't over, oldest first.
    """

    threads: tuple[ThreadFacts, ...]
    groups: dict[str, GroupProgress]
    dist_rank: int | None
    on_device: tuple[RecordedOperation, ...]


class HangRow(Record, frozen=True):
    """The known facts about one rank: its own answer, or otherwise its stacks."""

    facts: HangFacts | None = None
    stacks: RankStacks = {}


class Stacks(Request[dict[int, RankStacks]], frozen=True):
    """Return where ranks stand, by rank. `native`: frames of C code, too."""

    procs: list[int]
    native: bool = False


class Hang(Request[dict[int, HangRow]], frozen=True):
    """Return the things that ranks wait for, by rank."""

    procs: list[int]
