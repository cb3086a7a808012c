"""Answers requests once their ranks or hosts are up, or have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb._host.controller.registry import Registry, Waiting
from monarch_nb._protocol.ranks import WaitHosts, WaitProcs
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import HostState, ProcState
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.sending import Sends


class WaitingService:
    """The service that holds requests until ranks or hosts are up, or have ended. Owned by the loop
    thread.
    """

    def __init__(self, registry: Registry, hosts: HostService, sends: Sends) -> None:
        self._registry, self._hosts, self._sends = registry, hosts, sends

    @handles(WaitProcs)
    def do_wait_procs(self, request: WaitProcs, sender: Sender) -> Later | None:
        """Answer once ranks are up or have ended."""
        procs = self._registry.procs
        return self.answer_when(sender, {p for p in request.procs if procs[p].state == ProcState.STARTING})

    @handles(WaitHosts)
    def do_wait_hosts(self, request: WaitHosts, sender: Sender) -> Later | None:
        """Answer once hosts have joined."""
        hosts = self._hosts
        return self.answer_when(
            sender, {address.host_proc(h) for h in request.hosts if hosts.get(h).state == HostState.EXPECTED}
        )

    def answer_when(self, sender: Sender, left: set[int], *, restarted: bool = False) -> Later | None:
        """Answer once the procs `left` have settled; `restarted`: not before one of them was restarted."""
        if not left and not restarted:
            return None
        self._registry.waiting.append(Waiting(sender.proc, sender.ref, left))
        return LATER

    def settled(self, done: Iterable[Waiting]) -> None:
        """Answer requests that have nothing left to wait for."""
        for waiting in done:
            if waiting.done is not None:
                waiting.done()
            else:
                self._sends.reply(waiting.src, waiting.ref, None)
