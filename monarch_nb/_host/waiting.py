"""Requests that are answered once ranks or hosts are up, or have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from monarch_nb._host.registry import Waiting
from monarch_nb._host.request import LATER
from monarch_nb._protocol.states import HostState, ProcState
from monarch_nb._wire import address
from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess


class WaitingDesk:
    """Owned by the loop thread."""

    def __init__(self, home: HomeProcess) -> None:
        self._home = home

    def do_wait_procs(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once ranks are up or have ended."""
        procs = self._home.registry.procs
        return self.answer_when(message, {p for p in fields["procs"] if procs[p].state == ProcState.STARTING})

    def do_wait_hosts(self, message: Message, fields: dict[str, Any]) -> object:
        """Answer once hosts have joined."""
        hosts = self._home.hosts
        return self.answer_when(message, {address.host_proc(h) for h in fields["hosts"] if hosts.get(h).state == HostState.EXPECTED})

    def answer_when(self, message: Message, left: set[int], *, restarted: bool = False) -> object:
        """Answer once those that are `left` have settled; `restarted`: not before one of them has."""
        if not left and not restarted:
            return self._answer()
        self._home.registry.waiting.append(Waiting(message.src, message.ref, left))
        return LATER

    def settled(self, done: Iterable[Waiting]) -> None:
        """Answer requests that wait for nobody any more."""
        for waiting in done:
            if waiting.done is not None:
                waiting.done()
            else:
                self._home.reply(waiting.src, waiting.ref, self._answer())

    def _answer(self) -> dict[str, Any]:
        return {"hosts": self._home.hosts.rows()}
