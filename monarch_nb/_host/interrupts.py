"""Asking ranks to stop what they do: cells, functions on main threads, collectives that actors hang in."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from monarch_nb._host.request import LATER
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess

_ABORT_S = 1.0


class InterruptDesk:
    """Owned by the loop thread. How a cell is made to end is the `escalation`'s business."""

    def __init__(self, home: HomeProcess) -> None:
        self._home = home

    def do_interrupt_cell(self, message: Message, fields: dict[str, Any]) -> object:
        """Interrupt a cell; once more takes the next step at once."""
        return self._home.cells.interrupt(fields["n"])

    def do_interrupt(self, message: Message, fields: dict[str, Any]) -> object:
        """Interrupt whatever runs on ranks: cells, or functions on their main threads."""
        cells, procs = self._home.cells, set(fields["procs"])
        cells.interrupt_procs(procs)
        self._home.ranks.signal([p for p in procs if not cells.is_busy(p)], int(signal.SIGINT))
        self._home.journal.note(message.src, "command", source="%mesh interrupt", ranks=fields.get("rank_set", ""))
        return None

    def do_abort_call(self, message: Message, fields: dict[str, Any]) -> object:
        """Abort collectives on ranks whose actors don't react to an interrupt; answers once done."""
        home, src, ref = self._home, message.src, message.ref
        ranks = home.registry.by_rank(fields["procs"])
        home.asking.ask(ranks, "__abort__", None, lambda answers: home.reply(src, ref, answers), _ABORT_S)
        return LATER
