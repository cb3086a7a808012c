"""A rank's exit: which services of the controller are told of it, in which order, and the reasons for that
order.

`subscribers` is the one list. A part hears of each exit once, in the loop's thread. What one part raises goes
into the log, and those behind it hear of the exit nevertheless: else one mistake would leave a cell running
for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from msgspec import Struct

from monarch_nb._host.controller.registry import Proc
from monarch_nb._host.loop import guarded
from monarch_nb._protocol.exits import RankExit


class Exited(Struct, frozen=True):
    """The event that a rank's process has ended.

    Attributes:
        end: how it ended, with the registry's facts.
        again: whether another process takes its place at once.
        entry: the rank's entry in the registry, if there is one.
    """

    end: RankExit
    again: bool = False
    entry: Proc | None = None

    @property
    def is_loss(self) -> bool:
        """Whether the process ended without being asked to."""
        return not self.end.stopped and not self.again


class Subscriber(NamedTuple):
    """A service that is told of exits of ranks."""

    name: str
    hear: Callable[[Exited], None]


class Forgets(Protocol):
    """The interface of services that hold data for processes, and drop it when a process ends."""

    def forget(self, proc: int) -> None:
        """Drop the data of a process that has ended."""
        ...


class HearsOfProcs(Protocol):
    """The interface of services that hold data for ranks by proc id."""

    def proc_has_ended(self, proc: int) -> None:
        """Handle the end of a rank."""
        ...


class HearsOfExits(Protocol):
    """The interface of services that act on exits."""

    def rank_exited(self, exited: Exited) -> None:
        """Handle the exit of a rank."""
        ...


class Ranks(Protocol):
    """The interface to the service that starts the processes of ranks."""

    def note_exit(self, exited: Exited) -> None:
        """Enter an exit into the registry, and tell other processes of it."""
        ...

    def start_again(self, proc: int) -> None:
        """Restart a rank that has ended."""
        ...


class Parts(Protocol):
    """The services of a controller that are told of exits."""

    @property
    def router(self) -> Forgets:
        """The router of messages between machines."""
        ...

    @property
    def asking(self) -> Forgets:
        """Questions to ranks."""
        ...

    @property
    def ranks(self) -> Ranks:
        """The service of ranks' life cycles."""
        ...

    @property
    def journal(self) -> HearsOfExits:
        """The journal of what has happened."""
        ...

    @property
    def healing(self) -> HearsOfExits:
        """The service that heals losses."""
        ...

    @property
    def checkpoints(self) -> HearsOfExits:
        """The checkpoints of actors."""
        ...

    @property
    def orphans(self) -> HearsOfExits:
        """The service that stops the spawned actors of an ended process."""
        ...

    @property
    def cells(self) -> HearsOfExits:
        """The cells that run."""
        ...

    @property
    def status_publisher(self) -> HearsOfProcs:
        """The publisher of the mesh's state."""
        ...

    @property
    def debug(self) -> HearsOfProcs:
        """The threads that stand at breakpoints."""
        ...

    @property
    def questions(self) -> HearsOfProcs:
        """The questions of ranks to people."""
        ...


def subscribers(parts: Parts) -> tuple[Subscriber, ...]:
    """Return the subscribers of exits, in the order in which they are told."""
    return (
        # The dead rank won't answer any more: gathering services continue with the other answers.
        Subscriber("router", lambda e: parts.router.forget(e.end.proc)),
        Subscriber("asking", lambda e: parts.asking.forget(e.end.proc)),
        # From here on the registry has it as dead, on which all services below rely. Programs and ranks are
        # told before any action, so that no action overtakes this event.
        Subscriber("ranks", parts.ranks.note_exit),
        Subscriber("journal", parts.journal.rank_exited),
        # Peers are released from collectives, and owners asked, before cells are told: a cell whose other
        # ranks hang in a collective with the dead rank shall end by their own errors.
        Subscriber("healing", parts.healing.rank_exited),
        # Saves in progress are refused while the spawn specs still name their members.
        Subscriber("checkpoints", parts.checkpoints.rank_exited),
        # Drops the spawn specs of a rank that was stopped, then stops what its actors owned
        # on other processes.
        Subscriber("orphans", parts.orphans.rank_exited),
        Subscriber("cells", parts.cells.rank_exited),
        # Computed from the registry and the cells.
        Subscriber("status", lambda e: parts.status_publisher.proc_has_ended(e.end.proc)),
        Subscriber("debug", lambda e: parts.debug.proc_has_ended(e.end.proc)),
        Subscriber("questions", lambda e: parts.questions.proc_has_ended(e.end.proc)),
        # Last: after this the same proc id belongs to another process.
        Subscriber("restart", lambda e: parts.ranks.start_again(e.end.proc) if e.again else None),
    )


def tell(heard_by: Iterable[Subscriber], exited: Exited) -> None:
    """Tell subscribers of an exit, one after the other; an error of one goes into the log."""
    for subscriber in heard_by:
        guarded(partial(subscriber.hear, exited))
