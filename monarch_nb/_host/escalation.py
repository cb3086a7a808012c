"""Make a cell end, step by step:

1. SIGINT to the ranks at work
2. after `INTERRUPT_S`: collectives are aborted on all of its ranks together
3. after `ABORT_S` more: it's given up; the stuck ranks are named, with their stacks

Who asks again takes the next step at once. Afterwards process groups that were aborted are made anew.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb._host.groups import remake_groups
from monarch_nb._host.workflow import run_workflow
from monarch_nb._protocol.questions import AbortCollectives, CancelCell
from monarch_nb._shape import name_ranks

if TYPE_CHECKING:
    from monarch_nb._host.asking import Answers
    from monarch_nb._host.cells import Cell, Cells
    from monarch_nb._host.controller import ControllerProcess

INTERRUPT_S = 3.0
ABORT_S = 10.0
_ABORT_ANSWER_S = 1.0


class Escalation:
    """The steps taken to end one cell. Owned by the loop thread."""

    def __init__(self, controller: ControllerProcess, cells: Cells, cell: Cell, reason: str) -> None:
        self.reason = reason
        """user, failure or "timeout SECONDS": why it shall end."""
        self.aborted = False
        self._controller = controller
        self._cells = cells
        self._cell = cell
        self._level = 0
        self._num_aborted: int | None = None
        """On how many ranks something was aborted; None as long as they haven't all said so."""
        self._after_abort: Callable[[], None] = lambda: None

    def escalate(self) -> None:
        """Take the next step."""
        self._level += 1
        if self._level == 1:
            self._interrupt()
        elif self._level == 2:
            self._abort()
        elif self._level == 3:
            self._look()

    def _escalate_after(self, delay_s: float) -> None:
        level = self._level
        self._controller.loop.call_later(delay_s, lambda: self._go_on(level))

    def _go_on(self, level: int) -> None:
        if self._level == level and not self._cell.over:
            self.escalate()

    def _interrupt(self) -> None:
        procs = {r: self._cell.procs[r] for r in self._cell.running}
        # First the message, for a rank that hasn't begun yet; then the signal, for one that has.
        self._controller.asking.ask(procs, CancelCell(self._cell.n), lambda _answers: None, INTERRUPT_S)
        self._controller.ranks.signal(list(procs.values()), int(signal.SIGINT), self._cell.n)
        self._escalate_after(INTERRUPT_S)

    def _abort(self) -> None:
        self.aborted = True
        one = len(self._cell.running) == 1
        who = name_ranks(self._cell.running)
        self._cells.say(
            self._cell,
            f"{who} did not react to the interrupt: {'its' if one else 'their'} collectives are aborted",
        )
        # Ranks that run another cell are left alone; idle ones are at the other end of the connections.
        ranks = {
            r: p for r, p in self._group().items() if r in self._cell.procs or not self._cells.is_busy(p)
        }
        self._controller.asking.ask(ranks, AbortCollectives(), self._on_aborted, _ABORT_ANSWER_S)
        self._escalate_after(ABORT_S)

    def _group(self) -> dict[int, int]:
        """Return all ranks of the mesh: a collective may wait for one that doesn't run this cell."""
        procs = self._controller.registry.procs.values()
        return {p.rank: p.proc for p in procs if p.group == self._cell.group and p.end is None}

    def _on_aborted(self, answers: Answers) -> None:
        self._num_aborted = sum(1 for found in answers.values() if found)
        self._after_abort()

    def _look(self) -> None:
        """Ask the stuck ranks where they are, then give up."""
        ranks = {r: self._cell.procs[r] for r in self._cell.running}
        self._controller.looks.stacks(ranks, self._give_up)

    def _give_up(self, found: dict[int, dict[str, Any]]) -> None:
        if not self._cell.over:
            self._cells.give_up(self._cell, {r: each for r, each in found.items() if r in self._cell.running})

    # --- process groups

    def remake_groups(self, done: Callable[[str], None]) -> None:
        """Make the ranks' default process group anew if it was aborted; `done` gets what to tell people."""
        if self._num_aborted is None:  # the cell was faster than the news of the abort
            self._after_abort = lambda: self.remake_groups(done)
            return
        if not self._num_aborted:
            done("")
            return
        run_workflow(remake_groups(self._controller, self._group()), lambda said: done(str(said)))
