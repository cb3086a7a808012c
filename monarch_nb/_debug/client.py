"""The stops of a mesh, as a client sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monarch_nb._client.state import StatusFeed
from monarch_nb._debug.fold import FoldedAnswer, fold_answers
from monarch_nb._protocol.base import Record
from monarch_nb._protocol.debugging import (
    DebugBreak,
    DebugCommand,
    DebugPostMortem,
    DebugSet,
    DebugSettings,
    DebugStops,
    Stop,
    UnwatchDebug,
    WatchDebug,
)
from monarch_nb._protocol.states import StopState
from monarch_nb.actor.handle import placement_of, session_of, transport_of

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

COMMAND_S = 15.0
"""How long a line may take; a longer step continues, and its end is reported later."""


@dataclass(frozen=True)
class Answers:
    """The answers of stopped threads to one line of the debugger.

    Attributes:
        texts: by stop.
        left: stops that haven't answered yet.
        ranks: of all that were asked, by stop.
    """

    texts: Mapping[int, str]
    left: tuple[int, ...] = ()
    ranks: Mapping[int, int] = field(default_factory=dict)


class DebugAnswers(Record, frozen=True):
    """The answers of stopped threads to one line of the debugger, equal answers merged."""

    answers: list[FoldedAnswer]
    left: tuple[int, ...]
    """Stops that haven't answered in time: they run on."""
    stops: list[Stop]


class MeshDebugger:
    """The debugger of one mesh, as a client uses it. Any number of clients may have one; stops belong to the
    mesh.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def stops(self) -> list[Stop]:
        """Return all stops: thread, rank and place, by rank."""
        return session_of(self.mesh).request(DebugStops(placement_of(self.mesh).group))

    def send(self, stops: Sequence[Stop], line: str, timeout_s: float = COMMAND_S) -> Answers:
        """Send a line to stops, all at once; return their answers.

        Args:
            timeout_s: seconds; stops that step for longer are `left`, and come back later.
        """
        ids = [stop.id for stop in stops]
        found = session_of(self.mesh).request(DebugCommand(ids, line, timeout_s), timeout_s + 10.0)
        return Answers(found.answers, tuple(found.left), {s.id: s.rank for s in stops})

    def command(self, ids: Sequence[int] | None, line: str, timeout_s: float = COMMAND_S) -> DebugAnswers:
        """Send a line to stops, for front ends; `ids` None: all stops."""
        stops = [s for s in self.stops() if ids is None or s.id in ids]
        answers = self.send(stops, line, timeout_s)
        return DebugAnswers(fold_answers(answers), answers.left, self.stops())

    def watch(
        self, on_stops: Callable[[list[Stop]], None], on_end: Callable[[], None] | None = None
    ) -> StatusFeed[list[Stop]]:
        """Watch the stops: the callback gets them now and whenever they change, in the reading thread.
        `close` of the feed ends it.
        """
        feed: StatusFeed[list[Stop]] = StatusFeed(
            transport_of(self.mesh), list[Stop], on_stops, UnwatchDebug, on_end
        )
        session_of(self.mesh).watch(feed, WatchDebug(placement_of(self.mesh).group))
        return feed

    def post_mortem(self, ranks: str | Sequence[int] = "all") -> None:
        """Have ranks stop at their last error; ranks without an error since don't stop."""
        living = self.mesh.living_ranks()
        procs = placement_of(self.mesh).procs_at(r for r in self.mesh.select(ranks) if r in living)
        session_of(self.mesh).request(DebugPostMortem(procs))

    def set(
        self, *, skip: bool | None = None, on_error: bool | None = None, abandoned_s: float | None = None
    ) -> DebugSettings:
        """Change settings; return all present ones.

        Args:
            skip: breakpoints do nothing.
            on_error: an error stops where it was raised.
            abandoned_s: seconds without a client that could debug, after which ranks run on.
        """
        return session_of(self.mesh).request(DebugSet(skip, on_error, abandoned_s))

    def clear_breaks(self) -> None:
        """Clear the breakpoints set by programs."""
        living = self.mesh.living_ranks()
        session_of(self.mesh).request(
            DebugBreak({r: placement_of(self.mesh).procs[r] for r in living}, file="", line=0, condition="")
        )

    def break_at(
        self, file: str, line: int, condition: str = "", ranks: str | Sequence[int] = "all"
    ) -> dict[int, str]:
        """Set a breakpoint while code runs; return each rank's message about it.

        Args:
            file: a path or its end, or "In[3]" for a cell.
            condition: an expression that must be true there.
        """
        chosen = self.mesh.select(ranks)
        procs = {r: placement_of(self.mesh).procs[r] for r in chosen if r in self.mesh.living_ranks()}
        found = session_of(self.mesh).request(DebugBreak(procs, file, line, condition))
        return dict(sorted(found.items()))


def completions(mesh: Mesh, text: str) -> list[str]:
    """Return names that begin with a text, at the first stop."""
    debugger = mesh.debugger()
    stops = [s for s in debugger.stops() if s.state == StopState.STOPPED]
    if not stops:
        return []
    answers = debugger.send(stops[:1], f"!!complete {text}")
    return list(json.loads(next(iter(answers.texts.values()), "[]") or "[]"))
