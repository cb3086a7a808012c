"""Admits hosts of an engine by an invitation.

The invitation has a key that opens nothing but a knock. A knock names the key that the host has made for
itself; if there's a place, that key is let in, and the host process dials with it. An invitation is closed
while all its places are taken. It ends when its time is up, or when it's withdrawn.

A place whose host is lost is free again, for the launcher that an engine starts anew (a pod that restarts, a
job that is put back into the queue): under a new generation, so that the last holder, should it still live
somewhere, is sent away. Nobody gets the place of a host that isn't lost.
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import psutil
import zmq

from monarch_nb._host import capacity
from monarch_nb._host.controller.registry import Host
from monarch_nb._host.request import RequestError
from monarch_nb._protocol.invitations import Invite, Invited, Refusals, Withdraw
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import HostState
from monarch_nb._wire import message as wire
from monarch_nb._wire.invitation import Admission, Invitation, InvitationError, Knock
from monarch_nb._wire.keys import KeyPair, key_of

if TYPE_CHECKING:
    from monarch_nb._host.controller.hosts import HostService
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

MAX_REFUSALS = 20


class Parts(Protocol):
    """The parts of a controller that this module uses."""

    hosts: HostService
    loop: Loop
    registry: Registry


@dataclass
class _Open:
    """An invitation that hasn't ended."""

    hosts: list[int]
    addresses: tuple[str, ...]
    taken: set[int] = field(default_factory=set)


class Invitations:
    """The service that keeps the invitations of this mesh and the hosts admitted by them. Owned by the loop
    thread.
    """

    def __init__(self, controller: Parts) -> None:
        self._controller = controller
        self._guests: dict[str, _Open] = {}
        """Invitations, by the key that may only knock."""
        self._refusals: deque[str] = deque(maxlen=MAX_REFUSALS)

    # --- inviting

    @handles(Invite)
    def do_invite(self, request: Invite, sender: Sender) -> Invited:
        """Reserve places for future hosts; return their indices, and the invitation."""
        num = request.num
        capacity.check_room(num, force=True)
        link = self._controller.hosts.link
        addresses = self.listen(request.network, request.ports)
        keys = KeyPair.new()
        hosts = [self._controller.registry.new_host(label) for label in request.labels or [""] * num]
        self._guests[keys.public] = _Open([h.index for h in hosts], addresses)
        link.let_in(keys.public, self._knocks)
        self._controller.loop.call_later(request.expires_s, lambda: self._close(keys.public))
        invitation = Invitation(
            request.name, wire.VERSION, addresses, link.public_key, *keys, num, request.scratch
        )
        return Invited([h.index for h in hosts], invitation.to_json(), keys.public)

    @handles(Withdraw)
    def do_withdraw(self, request: Withdraw, sender: Sender) -> None:
        """Make an invitation void; places that nobody has taken are given up."""
        found = self._guests.get(request.guest)
        self._close(request.guest)
        for index in found.hosts if found else ():
            host = self._controller.registry.hosts[index]
            if host.state == HostState.EXPECTED:
                self._controller.hosts.link.give_up(host)

    @handles(Refusals)
    def do_refusals(self, request: Refusals, sender: Sender) -> list[str]:
        """Return a line about each refused host, with the reason."""
        return list(self._refusals)

    def close_all(self) -> None:
        """Make all invitations void."""
        for guest in list(self._guests):
            self._close(guest)

    def _close(self, guest: str) -> None:
        if self._guests.pop(guest, None) is not None:
            self._controller.hosts.link.keep_out(guest)

    def _close_if_full(self, guest: str) -> None:
        """Let nobody knock while no place is free."""
        opened = self._guests.get(guest)
        if opened is not None and self._free(opened, None) is None:
            self._controller.hosts.link.keep_out(guest)

    def host_lost(self, host: Host) -> None:
        """Let the launcher knock that is started anew in the place of a host that is gone."""
        for guest, opened in self._guests.items():
            if host.index in opened.taken and _may_come_back(host):
                self._controller.hosts.link.let_in(guest, self._knocks)

    def listen(self, network: str, ports: Sequence[int]) -> tuple[str, ...]:
        """Listen for other hosts; return the addresses at which they can reach this one.

        Raises:
            RequestError: if this machine has no address there, or all ports are taken.
        """
        return tuple(f"tcp://{_bracketed(a)}:{port}" for a, port in self._listen(network, ports))

    def _listen(self, network: str, ports: Sequence[int]) -> list[tuple[str, int]]:
        """Listen for other hosts; return the addresses and ports at which they can reach this one.

        Raises:
            RequestError: if this machine has no address there, or all ports are taken.
        """
        addresses = own_addresses(network)
        if not addresses:
            raise RequestError(
                f"this machine has no address in {network}; it has {', '.join(own_addresses(''))}: "
                "network = in the profile"
            )
        return (
            [(address, self._port(f"tcp://{_bracketed(address)}", ports)) for address in addresses]
            if network
            else self._everywhere(addresses, ports)
        )

    def _everywhere(self, addresses: Sequence[str], ports: Sequence[int]) -> list[tuple[str, int]]:
        where = "tcp://[::]" if sockets.has_dualstack_ipv6() else "tcp://0.0.0.0"
        port = self._port(where, ports)
        return [(address, port) for address in addresses if "[" in where or ":" not in address]

    def _port(self, where: str, ports: Sequence[int]) -> int:
        for port in range(ports[0], ports[1] + 1) if ports else ("*",):
            try:
                return int(self._controller.hosts.link.listen_on(f"{where}:{port}", ports).rpartition(":")[2])
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise RequestError(f"this machine can't listen at {where}:{port}: {error}") from None
        raise RequestError(
            f"ports {ports[0]}-{ports[1]} of this machine are all taken; name others: ports = in the profile"
        )

    # --- knocks

    def _knocks(self, frames: list[zmq.Frame]) -> None:
        payload = bytes(frames[1].buffer) if len(frames) == 2 else b""
        answer = self.answer(key_of(frames[0]), payload, str(frames[0].get("Peer-Address")))
        self._controller.hosts.link.answer(frames[0], answer)

    def answer(self, key: str, payload: bytes, peer: str) -> bytes:
        """Return the answer to a knock, whose content isn't trusted."""
        try:
            knock = Knock.from_json(payload)
            host = self._place(key, knock)
        except InvitationError as error:
            self._refusals.append(f"{peer}: {error}")
            return Admission(error=str(error)).to_json()
        self._controller.hosts.link.admit(host, knock.public, knock.address)
        return Admission(host.index, host.generation, host.label).to_json()

    def _place(self, guest: str, knock: Knock) -> Host:
        """Return the place that a knock may have.

        Raises:
            InvitationError: if there's none, or if it speaks another language.
        """
        if knock.wire_version != wire.VERSION:
            raise InvitationError(
                f"node {knock.node} has another version of monarch_nb (protocol {knock.wire_version}; "
                f"the mesh speaks {wire.VERSION}): install the same one there, or name its "
                "interpreter: python = in the profile"
            )
        hosts, opened = self._controller.registry.hosts, self._guests[guest]
        if knock.address not in opened.addresses:
            raise InvitationError(f"node {knock.node} came by an address that wasn't given to it")
        known = next((hosts[i] for i in opened.taken if hosts[i].public_key == knock.public), None)
        host = known or self._free(opened, knock.place)
        if host is None:
            raise InvitationError(
                f"no place is left for node {knock.node}: {len(opened.taken)} of {len(opened.hosts)} "
                "have joined"
            )
        if host.index in opened.taken and host is not known:
            host.expect_successor()
        opened.taken.add(host.index)
        host.label = host.label or knock.node
        if self._free(opened, None) is None:
            # the knock is answered first: earlier requests of this connection continue
            self._controller.loop.call_later(1.0, lambda: self._close_if_full(guest))
        return host

    def _free(self, opened: _Open, place: int | None) -> Host | None:
        hosts = self._controller.registry.hosts
        left = [
            hosts[i] for i in opened.hosts if i not in opened.taken and hosts[i].state == HostState.EXPECTED
        ]
        left += [hosts[i] for i in opened.hosts if i in opened.taken and _may_come_back(hosts[i])]
        if place is None:
            return next(iter(left), None)
        return next(
            (h for h in left if 0 <= place < len(opened.hosts) and h.index == opened.hosts[place]), None
        )


def _may_come_back(host: Host) -> bool:
    """Say whether another process may have a host's place: it's lost, or it was taken away from the mesh."""
    return host.state == HostState.LOST or (host.state == HostState.STOPPED and bool(host.taken))


def own_addresses(network: str) -> list[str]:
    """Return the addresses of this machine in a network; without one, all that other machines can reach, or
    the loopback as the last resort.
    """
    try:
        inside = ipaddress.ip_network(network) if network else None
    except ValueError as error:
        raise ValueError(f"{error}; expected one such as 10.0.0.0/8") from None
    found = [ipaddress.ip_address(text) for text in _interface_addresses()]
    if inside is not None:
        return [str(a) for a in found if a in inside]
    others = [
        str(a) for a in sorted(found, key=lambda a: a.version) if not a.is_loopback and not a.is_link_local
    ]
    return others or ["127.0.0.1"]


def _interface_addresses() -> Iterator[str]:
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, each in psutil.net_if_addrs().items():
        for entry in each:
            if name in up and entry.family in (sockets.AF_INET, sockets.AF_INET6):
                yield entry.address.partition("%")[0]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
