"""Keeps the machines of a mesh, as they join and leave, and routes messages to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb._host import capacity
from monarch_nb._host.controller import link
from monarch_nb._host.controller.link import HostLink
from monarch_nb._host.controller.registry import Host
from monarch_nb._host.request import RequestError
from monarch_nb._protocol.base import Event, Request, encode
from monarch_nb._protocol.events import (
    Beat,
    HostJoined,
    HostLeaving,
    HostLeft,
    LastWord,
    Leave,
    RanksEnded,
    WatchResources,
)
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.programs import HostRow
from monarch_nb._protocol.ranks import StopHosts, Ticket, Tickets
from monarch_nb._protocol.registry import LATER, Later, Sender, handles
from monarch_nb._protocol.states import HostState, ProcState
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.process import machine_id
from monarch_nb._workspace.answers import SetElsewhere

if TYPE_CHECKING:
    from monarch_nb._host.controller.environments import EnvironmentService
    from monarch_nb._host.controller.invitations import Invitations
    from monarch_nb._host.controller.ranks import RankService
    from monarch_nb._host.controller.status_publisher import StatusPublisher
    from monarch_nb._host.controller.waiting import WaitingService
    from monarch_nb._protocol.registry import Handlers


GONE_S = 10.0
"""How long a request to end hosts waits for them; longer than a host takes that ends its ranks by force."""


class Parts(link.Parts, Protocol):
    """The parts of a controller that this module uses."""

    environments: EnvironmentService
    handlers: Handlers
    invitations: Invitations
    ranks: RankService
    status_publisher: StatusPublisher
    waits: WaitingService

    def send_remote(self, host: int, frames: list[Any]) -> None:
        """Send frames to another host."""
        ...


@dataclass
class _Departure:
    """A request to remove hosts, answered once they have gone; `left`: those that haven't gone yet."""

    src: int
    ref: int
    left: set[int]


class HostService:
    """The service that keeps the hosts of a mesh, as they join and leave. Owned by the loop thread.

    Attributes:
        link: the link to other hosts.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self.link = HostLink(controller, self._lost)
        self._departures: list[_Departure] = []
        self.untold: list[RankExit] = []
        """Ends of ranks that other hosts haven't been told of."""

    def get(self, index: int) -> Host:
        """Return a host that belongs to the mesh.

        Raises:
            RequestError: if it doesn't.
        """
        known = self._controller.registry.hosts
        host = known.get(index)
        if host is not None and host.state in (HostState.LEAVING, HostState.STOPPED):
            raise RequestError(
                f"host {host.label or index} has already been shut down; take another from its job"
            )
        if host is None or host.state == HostState.LOST:
            state = host.state if host is not None else "unknown"
            raise RequestError(f"host {index} is {state}; hosts: {[h.index for h in known.values()]}")
        return host

    def of(self, procs: Iterable[int]) -> dict[int, list[int]]:
        """Group ranks by the index of their host.

        Raises:
            RequestError: for one that there has never been.
        """
        found: dict[int, list[int]] = {}
        for proc in procs:
            if proc not in self._controller.registry.procs:
                raise RequestError(f"this mesh has no process {proc:#x}")
            found.setdefault(address.host_of(proc), []).append(proc)
        return found

    def ask(self, index: int, request: Request[None]) -> None:
        """Send a request to a host process about its ranks."""
        if index == 0:
            self._controller.handlers.handle(request)
            return
        to = address.host_proc(index)
        frame = wire.pack(
            wire.CONTROL,
            src=self._controller.me,
            dst=to,
            name=request.wire_name.encode(),
            payload=encode(request),
        )
        self._controller.send_remote(index, [frame])

    def tell_end(self, end: RankExit) -> None:
        """Tell all other hosts within a moment that a rank has ended: of a thousand that end at once, in some
        messages instead of a thousand to each. Whatever else is sent to a host comes after it.
        """
        if not self.untold:
            self._controller.loop.call_shortly(self.tell_ends)
        self.untold.append(end)

    def tell_ends(self) -> None:
        """Tell all other hosts of the ends that they haven't been told of."""
        ends, self.untold = tuple(self.untold), []
        if ends:
            self.tell_all(RanksEnded(ends))

    def tell_all(self, event: Event) -> None:
        """Tell all other hosts of an event."""
        procs = [address.host_proc(host.index) for host in self.link.remote_hosts()]
        self._controller.event_to_all(procs, event)

    def rows(self) -> list[HostRow]:
        """Return a row of facts for each host."""
        return [
            HostRow(**{name: getattr(h, name) for name in HostRow.__struct_fields__})
            for h in self._controller.registry.hosts.values()
        ]

    # --- joining

    @handles(Tickets)
    def do_tickets(self, request: Tickets, sender: Sender) -> list[Ticket]:
        """Return tickets for `num` new hosts, with which they dial the controller."""
        capacity.check_room(request.num, force=True)
        bind = request.bind or "tcp://127.0.0.1:*"
        labels = request.labels or [""] * request.num
        hosts = [self._controller.registry.new_host(labels[i], request.kind) for i in range(request.num)]
        for host in hosts:
            host.env = dict(request.env)
        return [self.link.ticket(host, bind) for host in hosts]

    @handles(HostJoined)
    def on_join(self, event: HostJoined, sender: Sender) -> None:
        """Handle the arrival of a host process: register it, and answer requests that wait for it."""
        controller, index = self._controller, address.host_of(sender.proc)
        if controller.registry.hosts[index].state == HostState.LEAVING:
            return  # said once more over a new connection, by a host that hadn't heard of us; it's ending
        self.link.has_joined(index, event)
        controller.environments.joined(index)
        controller.waits.settled(controller.registry.host_is_up(index))
        if controller.status_publisher.watched:
            controller.event(sender.proc, WatchResources(True))
        controller.status_publisher.touch()

    @handles(Beat)
    def on_beat(self, event: Beat, sender: Sender) -> None:
        """Handle a heartbeat of a host process: record the time."""
        self._controller.registry.hosts[
            address.host_of(sender.proc)
        ].last_beat = self._controller.loop.clock()

    @handles(LastWord)
    def on_last_word(self, event: LastWord, sender: Sender) -> None:
        """Handle the last message of a host by the connection that it had before there were new keys."""
        self.link.switching.last_word(address.host_of(sender.proc))

    @handles(SetElsewhere)
    def do_set_elsewhere(self, request: SetElsewhere, sender: Sender) -> None:
        """Record the paths of the notebook's folders on hosts, for ranks that are started there."""
        for index, pairs in request.pairs.items():
            host = self._controller.registry.hosts[index]
            host.elsewhere = tuple({**dict(host.elsewhere), **dict(pairs)}.items())

    # --- leaving

    @handles(HostLeaving)
    def on_leaving(self, event: HostLeaving, sender: Sender) -> None:
        """Handle a host process's announcement that it ends on purpose: count its host as leaving."""
        self.link.leaves(address.host_of(sender.proc))

    @handles(HostLeft)
    def on_left(self, event: HostLeft, sender: Sender) -> None:
        """Handle the last message of a host process: count its host as stopped."""
        self.link.has_left(address.host_of(sender.proc))

    @handles(StopHosts)
    def do_stop_hosts(self, request: StopHosts, sender: Sender) -> Later | None:
        """Have hosts leave, unless they have gone; answered when they all have, or after `GONE_S`, with the
        remaining ones.
        """
        known = self._controller.registry.hosts
        hosts = [
            known[index]
            for index in request.hosts
            if index and known[index].state not in (HostState.STOPPED, HostState.LOST)
        ]
        departure = _Departure(sender.proc, sender.ref, {h.index for h in hosts})
        for host in hosts:
            self._controller.event(
                address.host_proc(host.index), Leave()
            )  # an expected host is sent the message when it joins
            self.link.leaves(host.index)
            for entry in self._controller.registry.alive_on(host.index):
                entry.state = ProcState.STOPPING
        self._controller.status_publisher.touch()
        if not hosts:
            return None
        self._departures.append(departure)
        self._controller.loop.call_later(GONE_S, lambda: self._give_up(departure))
        return LATER

    def _give_up(self, departure: _Departure) -> None:
        if departure not in self._departures:
            return
        self._departures.remove(departure)
        hosts = [self._controller.registry.hosts[index] for index in sorted(departure.left)]
        named = ", ".join(_name(host) for host in hosts)
        text = f"told to end, and not gone within {GONE_S:g} s: {named}"
        self._controller.reply(departure.src, departure.ref, text, error=True)

    def _await_exit(self, host: Host) -> None:
        """Wait for the process of a host that has ended according to its messages: on this machine, it may
        not have exited yet.
        """
        fd = -1
        if host.machine == machine_id():
            with suppress(OSError):
                fd = os.pidfd_open(host.pid)
        if fd < 0:
            self._gone(host.index)
            return

        def gone() -> None:
            self._controller.loop.forget_file(fd)
            os.close(fd)
            self._gone(host.index)

        self._controller.loop.watch_file(fd, gone)

    def _gone(self, index: int) -> None:
        for departure in list(self._departures):
            departure.left.discard(index)
            if not departure.left:
                self._departures.remove(departure)
                self._controller.reply(departure.src, departure.ref, None)

    def _lost(self, host: Host) -> None:
        self._controller.environments.lost(host.index)
        self._controller.invitations.host_lost(host)
        self._controller.status_publisher.touch()
        if any(host.index in departure.left for departure in self._departures):
            self._await_exit(host)
        for entry in self._controller.registry.alive_on(host.index):
            self._controller.ranks.ended(
                RankExit(
                    entry.proc,
                    entry.group,
                    entry.rank,
                    host.hostname,
                    entry.pid,
                    stopped=host.state == HostState.STOPPED,
                    reason=f"is lost: host {host.hostname} {host.why_lost or 'has left'}",
                )
            )


def _name(host: Host) -> str:
    if host.state == HostState.EXPECTED:
        return f"{host.label or host.index} (has never joined)"
    where = f" on {host.hostname}" if host.hostname != host.label else ""
    return f"{host.label or host.index} (pid {host.pid}{where})"
