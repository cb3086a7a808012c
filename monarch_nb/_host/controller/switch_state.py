"""Decides which of a host's two connections counts, while the mesh is given new keys. Pure.

A host that has joined dials the new port beside its connection, and says something there. From then on all
messages to it go by the new connection; the last one by the old connection tells it so. It answers there with
its last word, and speaks by the new connection only. What it says there counts once that last word has come.
So both directions stay in order, and each message comes once::

    controller                                  host
    by the old one: DialAnew(port, key)   ->    dials
    (handles what comes by the old one)   <-    by the new one: Beat
    by the old one: Switch                ->    reads the new one from now on
    (keeps what comes by the new one)     <-    by the old one: LastWord
    by the new one: Switched              ->    closes the old one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Heard(Enum):
    """The treatment of a message of a host."""

    TAKE = auto()
    """Handle it."""
    DIALLED = auto()
    """Keep it until the host's last word on the old connection, and tell the host to switch: it's the first
    message by the new one.
    """
    KEEP = auto()
    DROP = auto()
    """It's a repetition, by a connection that is over."""


class Due(Enum):
    """The thing that a host has to be told, again if need be: what was on its way when a connection broke is
    lost.
    """

    DIAL = auto()
    SWITCH = auto()


@dataclass
class _Switching:
    """A host that is to come over.

    Attributes:
        old, new: identities of its connections; empty: it hasn't been heard by that one yet.
    """

    generation: int
    old: bytes
    new: bytes = b""
    kept: list[Sequence[Any]] = field(default_factory=list)


class SwitchState:
    """The state of the hosts that are to come over to new keys.

    Example:
        >>> state = SwitchState()
        >>> state.bring_over({1: (0, b"old")})
        >>> state.hears(1, 0, b"new", ["hello"]), state.hears(1, 0, b"old", ["before"])
        (<Heard.DIALLED: 2>, <Heard.TAKE: 1>)
        >>> state.hears(1, 0, b"new", ["after"]), state.route(1, 0, b"old")
        (<Heard.KEEP: 3>, b'new')
        >>> state.last_word(1), state.left
        ([['hello'], ['after']], [])
    """

    def __init__(self) -> None:
        self._hosts: dict[int, _Switching] = {}
        self._over: set[bytes] = set()
        """The identities of connections that are over."""

    @property
    def left(self) -> list[int]:
        """The indices of the hosts that haven't come over yet."""
        return list(self._hosts)

    def bring_over(self, hosts: dict[int, tuple[int, bytes]]) -> None:
        """Have hosts come over.

        Args:
            hosts: the generation and the identity of each, by its index; the identity is empty if the host is
                expected.
        """
        self._hosts.update({index: _Switching(*each) for index, each in hosts.items()})

    def generation(self, index: int) -> int:
        """Return the generation of a host that is to come over."""
        return self._hosts[index].generation

    def hears(self, index: int, generation: int, identity: bytes, parts: Sequence[Any]) -> Heard:
        """Return what to do with a message; it's kept here if it's to be kept."""
        if identity in self._over:
            return Heard.DROP
        host = self._hosts.get(index)
        if host is None or host.generation != generation:
            return Heard.TAKE
        host.old = host.old or identity
        if identity == host.old:
            return Heard.TAKE
        is_first = not host.new
        host.new = host.new or identity
        if identity != host.new:
            return Heard.DROP
        host.kept.append(parts)
        return Heard.DIALLED if is_first else Heard.KEEP

    def route(self, index: int, generation: int, identity: bytes) -> bytes:
        """Return the identity of the connection by which messages go to a host that was heard by
        `identity`.
        """
        host = self._hosts.get(index)
        if host is None or host.generation != generation:
            return identity
        return host.new or host.old

    def due(self, only: int | None = None) -> list[tuple[int, Due, bytes]]:
        """Return what hosts, or only one, have to be told now: index, message, and the identity of the
        connection by which it goes.
        """
        return [
            (index, Due.SWITCH if host.new else Due.DIAL, host.old)
            for index, host in self._hosts.items()
            if host.old and only in (None, index)
        ]

    def last_word(self, index: int) -> list[Sequence[Any]]:
        """Take note that a host has said its last word on the old connection; return what was kept, in
        order.
        """
        host = self._hosts.get(index)
        if host is None or not host.new:
            return []
        del self._hosts[index]
        self._over.add(host.old)
        return host.kept

    def forget(self, index: int) -> None:
        """Wait for a host no longer: it's gone, or another one has its place."""
        self._hosts.pop(index, None)
