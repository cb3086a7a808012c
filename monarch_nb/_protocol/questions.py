"""Types of requests that processes with actors answer at once in their reading thread: they run no user code.

On the wire they're CALLs to the process itself (target 0), whose payload is the request.
"""

from __future__ import annotations

from monarch_nb._protocol.base import Record, Request
from monarch_nb._protocol.hang import HangFacts
from monarch_nb._protocol.resources import Standing


class Ping(Request[None], frozen=True):
    """Answer, to show that the reading thread reacts."""


class StopActor(Request[None], frozen=True):
    """Let an actor end after what it's doing; `waits`: answer when it has."""

    actor_id: int
    reason: str
    waits: bool


class InterruptCall(Request[None], frozen=True):
    """Interrupt what the sender waits for under `ref`, if it still runs; what hasn't begun is answered.
    Nobody waits for this.
    """

    ref: int


class ThreadStacks(Request[dict[str, str]], frozen=True):
    """Return the Python stack of each thread, by its name."""


class LivingActors(Request[list[int]], frozen=True):
    """Return the ids of the actors that haven't failed."""


class CheckpointVersions(Request[dict[int, list[int]]], frozen=True):
    """Return the versions of states that are in memory, by actor."""


# --- ranks only


class AwaitedThings(Request[HangFacts], frozen=True):
    """Return what the threads wait for that run user code."""


class WhereNow(Request[Standing], frozen=True):
    """Return where the threads are that run user code, and how many messages wait."""


class SetBreak(Request[str], frozen=True):
    """Set a breakpoint; without a file, clear all. Returns a message about it."""

    file: str
    line: int
    condition: str


class AbortCollectives(Request[int], frozen=True):
    """Abort the collectives that run: all, or those of a world of a given size; answers how many backends
    were.
    """

    world_size: int | None = None


class ProcessGroup(Record, frozen=True):
    """The default process group of a rank, in which it has a rank of its own."""

    backend: str
    world_size: int
    rank: int
    timeout_s: float


class DescribeProcessGroup(Request[ProcessGroup | None], frozen=True):
    """Return the default process group; None if there's none."""


class CancelCell(Request[None], frozen=True):
    """Don't begin a cell that may not have begun yet."""

    n: int
