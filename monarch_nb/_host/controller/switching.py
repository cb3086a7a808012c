"""Has the hosts that have joined come over to new keys, one by one, while everything goes on.

`switch_state` decides; this sends, keeps the time, and says what has become of it. A host that doesn't come
over within `SWITCH_S` loses nothing: the old port stays open for it, until it has come over or is gone.
Nobody else can use that port, since their keys aren't let in any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb._host.controller.registry import Host
from monarch_nb._host.controller.sending import Sends
from monarch_nb._host.controller.switch_state import Due, Heard, SwitchState
from monarch_nb._host.loop import guarded
from monarch_nb._protocol.base import Event
from monarch_nb._protocol.events import DialAnew, Switch, Switched
from monarch_nb._protocol.states import HostState
from monarch_nb._wire import address

if TYPE_CHECKING:
    from monarch_nb._host.controller.registry import Registry
    from monarch_nb._host.loop import Loop

SWITCH_S = 20.0
"""How long a request for new keys waits for hosts."""
LAST_WORD_S = 0.3
"""How long somebody who is disconnected has to read the reason."""
BOUND = (HostState.EXPECTED, HostState.UP, HostState.LEAVING)
"""States of hosts that are connected by the last key, or are about to be."""


class Parts(Sends, Protocol):
    """The parts of a controller that this module uses."""

    loop: Loop
    registry: Registry

    def receive_remote(self, frames: Sequence[Any]) -> None:
        """Handle a message of another host."""
        ...


class Link(Protocol):
    """The interface of the link to other hosts that this module uses."""

    @property
    def public_key(self) -> str:
        """The controller's public key."""
        ...

    def send_by(self, identity: bytes, index: int, event: Event) -> None:
        """Send an event to a host process by one of its connections."""
        ...

    def forget_connection(self, fd: int) -> None:
        """Draw no conclusion from the end of a connection."""
        ...

    def close_old(self) -> None:
        """Listen no longer with the last key."""
        ...

    def give_up(self, host: Host) -> None:
        """Give up an expected host."""
        ...


@dataclass
class Outcome:
    """The names of hosts by what became of them while new keys were taken.

    Attributes:
        moved: those that have come over.
        lost: those that were lost meanwhile.
        unjoined: those that haven't joined by the last key, and can't any more.
        left: those that still use the last key.
    """

    moved: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unjoined: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Switching:
    """The service that has hosts come over to new keys. Owned by the loop thread."""

    def __init__(self, controller: Parts, link: Link) -> None:
        self._controller, self._link = controller, link
        self._state = SwitchState()
        self._fds: dict[int, int] = {}
        """The descriptor of each host's old connection."""
        self._ports: dict[int, int] = {}
        self._outcome = Outcome()
        self._done: Callable[[Outcome], None] | None = None
        self._is_busy = False
        self._may_close = False
        """Whether those who are put out have had the time to read why."""

    @property
    def is_busy(self) -> bool:
        """Whether the last key is still in use."""
        return self._is_busy

    def left(self) -> list[str]:
        """Return the names of the hosts that still use the last key."""
        hosts = self._controller.registry.hosts
        return [name_of(hosts[index]) for index in self._state.left]

    def bring_over(
        self,
        identities: dict[int, bytes],
        ports: dict[int, int],
        unjoined: Sequence[Host],
        done: Callable[[Outcome], None],
    ) -> None:
        """Have hosts come over.

        Args:
            identities: of the connection of each host; empty if it's expected.
            ports: where each dials now.
            unjoined: hosts that are expected and can't join any more.
            done: called with the outcome, once.
        """
        hosts = self._controller.registry.hosts
        self._outcome, self._done, self._ports = Outcome(), done, ports
        self._is_busy, self._may_close = True, False
        self._state.bring_over({i: (hosts[i].generation, identity) for i, identity in identities.items()})
        self._give_up(unjoined)
        self._controller.loop.call_later(LAST_WORD_S, self._words_are_read)
        self._controller.loop.call_later(SWITCH_S, partial(self._is_late, self._outcome))
        self._tell()

    def _words_are_read(self) -> None:
        self._may_close = True
        self._look()

    def _give_up(self, hosts: Sequence[Host]) -> None:
        for host in hosts:
            self._outcome.unjoined.append(name_of(host))
            self._state.forget(host.index)
            self._link.give_up(host)

    # --- while it lasts

    def hears(self, host: Host, identity: bytes, fd: int, parts: Sequence[Any]) -> Heard:
        """Return what to do with a message of a host; one that comes by its new connection too early is kept
        here.
        """
        heard = self._state.hears(host.index, host.generation, identity, parts)
        if heard is Heard.TAKE:
            if self._is_busy:
                self._fds[host.index] = fd
        elif heard is not Heard.DROP:
            host.last_beat = self._controller.loop.clock()  # heartbeats are among what is kept
        if heard is Heard.DIALLED:
            self._tell(host.index)
        return heard

    def route(self, host: Host, identity: bytes) -> bytes:
        """Return the identity of the connection by which messages go to a host that was heard by
        `identity`.
        """
        return self._state.route(host.index, host.generation, identity)

    def last_word(self, index: int) -> None:
        """Handle a host's last word on its old connection: what has come by the new one counts now."""
        host = self._controller.registry.hosts[index]
        kept = self._state.last_word(index)
        if not kept:
            return
        self._link.forget_connection(self._fds.pop(index, -1))
        self._outcome.moved.append(name_of(host))
        for parts in kept:
            guarded(partial(self._controller.receive_remote, parts))
        self._controller.event(address.host_proc(index), Switched())
        self._look()

    def beat(self) -> None:
        """Look after the hosts that haven't come over, once in a while."""
        if self._is_busy:
            self._tell()
            self._look()

    def _tell(self, only: int | None = None) -> None:
        """Tell hosts, or only one, what they have to be told now."""
        hosts = self._controller.registry.hosts
        for index, due, identity in self._state.due(only):
            if hosts[index].state not in (HostState.UP, HostState.LEAVING):
                continue
            event: Event = Switch()
            if due is Due.DIAL:
                event = DialAnew(self._ports[index], self._link.public_key)
            self._link.send_by(identity, index, event)

    def _look(self) -> None:
        """Forget hosts that are gone; close the old port if nobody needs it any more."""
        hosts = self._controller.registry.hosts
        for index in self._state.left:
            host = hosts[index]
            is_another = host.generation != self._state.generation(index)
            if host.state in BOUND and not is_another:
                continue
            if host.state == HostState.LOST or is_another:
                self._outcome.lost.append(name_of(host))
            self._state.forget(index)
        if self._may_close and self._is_busy and not self._state.left:
            self._is_busy = False
            self._fds.clear()
            self._link.close_old()
            self._answer()

    def _is_late(self, outcome: Outcome) -> None:
        """Answer although hosts are left: those that were expected can't join any more."""
        if outcome is not self._outcome or not self._is_busy:
            return
        hosts = self._controller.registry.hosts
        left = [hosts[index] for index in self._state.left]
        self._give_up([host for host in left if host.state == HostState.EXPECTED])
        self._look()
        self._outcome.left = self.left()
        self._answer()

    def _answer(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._outcome.moved.sort()
            done(self._outcome)


def name_of(host: Host) -> str:
    """Return the name of a host, as people know it."""
    return host.label or host.hostname or f"host {host.index}"
