"""Asking ranks to stop what they do: cells, functions on main threads, collectives that actors hang in."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from monarch_nb._protocol.questions import AbortCollectives
from monarch_nb._protocol.ranks import AbortCall, Interrupt, InterruptCell
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import EntryKind

if TYPE_CHECKING:
    from monarch_nb._host.controller.controller import ControllerProcess

_ABORT_S = 1.0


class InterruptService:
    """Owned by the loop thread. How a cell is made to end is the `escalation`'s business."""

    def __init__(self, controller: ControllerProcess) -> None:
        self._controller = controller

    @handles(InterruptCell)
    def do_interrupt_cell(self, request: InterruptCell, sender: Sender) -> bool:
        """Interrupt a cell; once more takes the next step at once."""
        return self._controller.cells.interrupt(request.n)

    @handles(Interrupt)
    def do_interrupt(self, request: Interrupt, sender: Sender) -> None:
        """Interrupt whatever runs on ranks: cells, or functions on their main threads."""
        cells, procs = self._controller.cells, set(request.procs)
        cells.interrupt_procs(procs)
        self._controller.ranks.signal([p for p in procs if not cells.is_busy(p)], int(signal.SIGINT))
        self._controller.journal.note(
            sender.proc, EntryKind.COMMAND, source="%mesh interrupt", ranks=request.rank_set
        )

    @handles(AbortCall)
    def do_abort_call(self, request: AbortCall, sender: Sender) -> dict[int, int] | Later:
        """Abort collectives on ranks whose actors don't react to an interrupt; answers once done."""
        controller, src, ref = self._controller, sender.proc, sender.ref
        ranks = controller.registry.by_rank(request.procs)
        controller.asking.ask(
            ranks, AbortCollectives(), lambda answers: controller.reply(src, ref, answers), _ABORT_S
        )
        return LATER
