"""Keeps the states of the actors that this program has spawned: whether they have failed, and which failures
the program has been told of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from weakref import WeakKeyDictionary, WeakValueDictionary

from monarch_nb._folding import split
from monarch_nb._protocol.failure import Failure
from monarch_nb._runtime.supervision import MeshFailure
from monarch_nb._transport.transport import Transport
from monarch_nb.exceptions import SupervisionError


class ActorState:
    """The state of the actors of one spawn, shared by all handles on them in this process.

    Attributes:
        failure: the failure of the actors, if some have failed.
        dead: procs on which they have failed; the others can still be called, by a slice.
    """

    __slots__ = ("__weakref__", "_reported", "dead", "described", "failure")

    def __init__(self) -> None:
        self.failure: MeshFailure | None = None
        self.dead: set[int] = set()
        self.described: list[Failure] = []
        self._reported: set[Hashable] = set()

    def fail(self, described: Failure) -> None:
        """Record that an actor has failed for good."""
        self._keep()
        self.described.append(described)
        self.dead.add(described.proc)
        self.failure = MeshFailure.from_failures(self.described)

    def end_on(self, procs: Sequence[int], failure: MeshFailure) -> None:
        """Mark the actors on these procs as stopped: from now on any use that includes one of them raises."""
        self.failure = failure
        self.dead.update(procs)

    def check(self, procs: Sequence[int], what: str) -> None:
        """Raise if the actors on these procs can't be called.

        Raises:
            SupervisionError: if some of them are dead; `what` can't be called.
        """
        failure = self.failure
        if failure is None or self.dead.isdisjoint(procs):
            return
        error = SupervisionError(self.text(what), failure.failures)
        raise error if self.take_unreported(self.described) else error.briefly()

    def take_unreported(self, described: Sequence[Failure], whom: str = "reader") -> list[Failure]:
        """Return the failures whose like hasn't been reported yet. They count as reported from now on:
        once to the user, by an exception or on stderr; and once to a fault hook of the program."""
        self._keep()
        kinds = [(whom, f.type, split(f.message)[0], split(f.traceback)[0]) for f in described]
        unreported = [f for f, kind in zip(described, kinds, strict=True) if kind not in self._reported]
        self._reported.update(kinds)
        return unreported

    def _keep(self) -> None:
        """Live on for a while without a handle: whom a failure was told of must not be told again."""
        if self not in _failed:
            _failed.append(self)

    def heal(self) -> None:
        """Clear the failures: the actors have been made again."""
        self.failure = None
        self.dead.clear()
        self.described.clear()
        self._reported.clear()

    def text(self, what: str, described: Sequence[Failure] = ()) -> str:
        """Return in a line why `what` can't be called; `described`: what is known about the failure if no
        event has arrived yet.
        """
        failure = self.failure or MeshFailure.from_failures(described)
        if any(f.details.get("endpoint") == "__init__" for f in failure.failures):
            return f"{what}: {failure.message}. Next: spawn it again, or %mesh heal (mesh.heal())"
        return f"{what}: the actor mesh {failure.mesh!r} is dead: {failure.message}"


_failed: deque[ActorState] = deque(maxlen=64)
"""States of actors that have failed last."""
_states: WeakKeyDictionary[Transport, WeakValueDictionary[int, ActorState]] = WeakKeyDictionary()


def states_in(transport: Transport) -> WeakValueDictionary[int, ActorState]:
    """Return the states of the actors spawned through a transport, by actor id. Handles keep them alive, and
    for a while that they have failed.
    """
    return _states.setdefault(transport, WeakValueDictionary())
