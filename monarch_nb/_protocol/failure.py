"""A failure, as the process where it happened describes it to the waiting caller, or to the owner of the
failed actor.
"""

from __future__ import annotations

from monarch_nb._protocol.base import Event, Record
from monarch_nb._protocol.exits import RankExit


class Failure(Record, frozen=True):
    """The description of a failure: what was raised, or has died, and where.

    Attributes:
        type: name of the exception's class; "lost" if a process has died.
        message: its text; for a process, how it died.
        traceback: traceback of the user's frames.
        exception: the exception itself, encoded, if it can be; opaque to all processes on the way.
        when: seconds since the epoch; 0: unknown.
        rank: rank where it happened; None: a program, or unknown.
        host, pid: of that process.
        actor: name of the actor mesh, if it happened in an actor; `endpoint`: what was called.
        actor_id: id of the actor, if that has failed for good.
        proc: proc id of the process, if the receiver needs it.
        dead: whether the callee no longer exists: an actor, a process.
        end: how the process ended, if it did.
    """

    type: str
    message: str
    traceback: str = ""
    exception: bytes | None = None
    when: float = 0.0
    rank: int | None = None
    host: str = ""
    pid: int = 0
    actor: str = ""
    endpoint: str = ""
    actor_id: int = 0
    proc: int = 0
    dead: bool = False
    end: RankExit | None = None


class ActorFailed(Event, frozen=True):
    """Actors have failed for good, or are lost; their owner is told: a program, or (as a call,
    `__supervise__`) an actor.
    """

    actor_id: int
    failure: Failure
