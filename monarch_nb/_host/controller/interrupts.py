"""Interrupts the work of ranks: cells, functions on main threads, collectives in which actors hang."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from monarch_nb._protocol.journal import JournalEntry
from monarch_nb._protocol.questions import AbortCollectives
from monarch_nb._protocol.ranks import AbortCall, Interrupt, InterruptCell
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import EntryKind

if TYPE_CHECKING:
    from monarch_nb._host.controller.asking import Asking
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.journal_service import JournalService
    from monarch_nb._host.controller.ranks import RankService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.controller.sending import Sends

_ABORT_S = 1.0


class InterruptService:
    """The service that forwards interrupts to ranks. Owned by the loop thread. How a cell is made to end is
    decided by `escalation`.
    """

    def __init__(
        self, registry: Registry, cells: Cells, ranks: RankService, journal: JournalService, asking: Asking,
        sends: Sends,
    ) -> None:  # fmt: skip
        self._registry, self._cells, self._ranks = registry, cells, ranks
        self._journal, self._asking, self._sends = journal, asking, sends

    @handles(InterruptCell)
    def do_interrupt_cell(self, request: InterruptCell, sender: Sender) -> bool:
        """Interrupt a cell; a repeated request takes the next step at once."""
        return self._cells.interrupt(request.n)

    @handles(Interrupt)
    def do_interrupt(self, request: Interrupt, sender: Sender) -> None:
        """Interrupt the work of ranks: cells, or functions on their main threads."""
        cells, procs = self._cells, set(request.procs)
        cells.interrupt_procs(procs)
        self._ranks.signal([p for p in procs if not cells.is_busy(p)], int(signal.SIGINT))
        entry = JournalEntry(EntryKind.COMMAND, source="%mesh interrupt", ranks=request.rank_set)
        self._journal.note(sender.proc, entry)

    @handles(AbortCall)
    def do_abort_call(self, request: AbortCall, sender: Sender) -> dict[int, int] | Later:
        """Abort collectives on ranks whose actors don't react to an interrupt; answers once done."""
        reply = partial(self._sends.reply, sender.proc, sender.ref)
        ranks = self._registry.by_rank(request.procs)
        self._asking.ask(ranks, AbortCollectives(), reply, _ABORT_S)
        return LATER
