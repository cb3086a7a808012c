"""Gathers what ranks of this host have printed, and which have ended, so that the controller is told of it in
few messages: of 32 ranks that print a line, or are stopped, in one and not in 32.

Output waits for `GATHER_S`, so that what all ranks print of a line leaves in one message; that of a host's
only rank leaves at the end of the loop's round, and what follows at once together. Ends wait for others only
while ranks are being stopped. Whatever else this host sends comes after what is kept here, and a rank's end
after what it printed.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_nb._host.loop import Loop
from monarch_nb._protocol.base import Event
from monarch_nb._protocol.events import EndsHere, Printed, RanksPrinted
from monarch_nb._protocol.exits import RankExit
from monarch_nb._wire.marks import SETTLED, Piece

GATHER_S = 0.005
"""How long output may wait for more."""
MAX_BYTES = 1 << 18
"""How much output may be kept."""
STOPPING_S = 0.05
"""How long the end of a rank that was stopped may wait for those of others that are being stopped."""


class Outbox:
    """The news of a host for its controller, in order. Owned by the loop thread.

    Args:
        tell: sends an event to the controller, after a call of `flush`.
        is_stopping: says whether further ranks here are about to end since they were asked to.
        holds_answers: says whether answers of ranks here wait for others; they're sent after what is here.
        is_alone: says whether this host has one rank only.
    """

    def __init__(
        self,
        loop: Loop,
        tell: Callable[[Event], None],
        is_stopping: Callable[[], bool],
        holds_answers: Callable[[], bool],
        is_alone: Callable[[], bool],
    ) -> None:
        self._loop, self._tell = loop, tell
        self._is_stopping, self._holds_answers, self._is_alone = is_stopping, holds_answers, is_alone
        self._printed: list[Printed] = []
        self._num_bytes = 0
        self._ends: list[RankExit] = []
        self._is_due = False
        """Whether all leaves at the end of this round."""
        self._gathers = False
        """Whether output waits for the timer, or has left a moment ago."""
        self._awaits_ends = False

    def add_printed(self, proc: int, rank: int, piece: Piece) -> None:
        """Keep a piece of a rank's output until it leaves with others."""
        self._printed.append(Printed(proc, rank, piece))
        self._num_bytes += len(piece.data)
        if self._num_bytes >= MAX_BYTES:
            self.flush()
        elif piece.kind == SETTLED and not self._holds_answers():
            self._leave_this_round()  # somebody waits for a mark, if not for the answers behind it, too
        elif not self._gathers and self._is_alone():
            self._leave_this_round()
        if not self._gathers:
            self._gathers = True
            self._loop.call_later(GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._gathers = bool(self._printed)
        if self._gathers:
            self._loop.call_later(GATHER_S, self._gathered)
            self.flush()

    def add_end(self, end: RankExit) -> None:
        """Keep the end of a rank until it leaves with others."""
        self._ends.append(end)
        if not end.stopped or not self._is_stopping():
            self._leave_this_round()
        elif not self._awaits_ends:
            self._awaits_ends = True
            self._loop.call_later(STOPPING_S, self._stopped)

    def _stopped(self) -> None:
        self._awaits_ends = False
        self.flush()

    def _leave_this_round(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end_round)

    def _end_round(self) -> None:
        self._is_due = False
        self.flush()

    def flush(self) -> None:
        """Tell the controller now of all that is kept."""
        printed, self._printed, self._num_bytes = self._printed, [], 0
        ends, self._ends = self._ends, []
        if printed:
            self._tell(RanksPrinted(tuple(printed)))
        if ends:
            self._tell(EndsHere(tuple(ends)))
