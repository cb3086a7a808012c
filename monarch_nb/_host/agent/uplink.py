"""The connection of a host process to the controller, and the change to another one when the mesh is given
new keys: `controller/switch_state` says how both sides do that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import zmq

from monarch_nb._host.config import HostConfig
from monarch_nb._host.loop import Loop
from monarch_nb._wire.connection_events import read_event, send_unless_refused

_HANDSHAKE_MS = 5000
_LINGER_MS = 500


class _Connection(NamedTuple):
    """A connection to the controller, and the socket that tells of its end."""

    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]

    def close(self) -> None:
        """Close both."""
        self.socket.disable_monitor()
        self.socket.close(_LINGER_MS)
        self.monitor.close(0)


class Uplink:
    """The connection of a host process to the controller. Owned by the loop thread.

    Args:
        take: called with the frames of each message.
        on_disconnect: called when the connection has ended; ZeroMQ dials again by itself.
        on_refused: called when the controller doesn't let this host in any more: its place was given up.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        config: HostConfig,
        take: Callable[[list[zmq.Frame]], None],
        on_disconnect: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        self._context, self._loop = context, loop
        self._take, self._on_disconnect, self._on_refused = take, on_disconnect, on_refused
        self._old: _Connection | None = None
        self._next: _Connection | None = None
        self._now = self._dialled(config)
        self._watch(self._now)

    def _dialled(self, config: HostConfig) -> _Connection:
        link = self._context.socket(zmq.DEALER)
        link.setsockopt(zmq.SNDHWM, 0)
        link.setsockopt(zmq.RCVHWM, 0)
        link.setsockopt(zmq.LINGER, _LINGER_MS)
        identity = b"h%d.%d.%s" % (config.host, config.generation, secrets.token_hex(8).encode())
        link.setsockopt(zmq.IDENTITY, identity)
        link.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        link.curve_serverkey = config.controller_key.encode()
        link.curve_publickey, link.curve_secretkey = config.public.encode(), config.secret.encode()
        monitor = link.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        link.setsockopt(zmq.IPV6, int("[" in config.controller))
        link.connect(config.controller)
        return _Connection(link, monitor)

    def _watch(self, connection: _Connection) -> None:
        self._loop.watch_socket(connection.socket, lambda: self._receive(connection.socket))
        self._loop.watch_socket(connection.monitor, partial(self._ended, connection))

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        self._take(socket.recv_multipart(copy=False))

    def _ended(self, connection: _Connection) -> None:
        event, _ = read_event(connection.monitor)
        if connection is self._now:
            refused = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            (self._on_refused if refused else self._on_disconnect)()

    def send(self, frames: Sequence[Any], *, copy: bool = True) -> None:
        """Send a message to the controller."""
        send_unless_refused(self._now.socket, frames, copy=copy)

    def dial_anew(self, config: HostConfig, hello: bytes) -> None:
        """Dial once more, and say `hello` there; nothing else is sent or read there until `switch`."""
        self.close_old()
        self._next = self._dialled(config)
        self._next.socket.send(hello)

    def switch(self, last_word: bytes) -> None:
        """Use the connection that was dialled anew, after a last word on the old one; that is repeated if
        it's wanted again: it may be lost with a connection that breaks.
        """
        if self._next is not None:
            self._old, self._now, self._next = self._now, self._next, None
            self._watch(self._now)
        if self._old is not None:
            send_unless_refused(self._old.socket, [last_word])

    def close_old(self) -> None:
        """Close the old connection, at the end of this round: all that was sent there has arrived."""
        old, self._old = self._old, None
        if old is not None:
            self._loop.call_soon(partial(self._retire, old))

    def _retire(self, connection: _Connection) -> None:
        for socket in connection:
            self._loop.forget_socket(socket)
        connection.close()

    def close(self) -> None:
        """Close all connections; what was sent last still leaves."""
        for connection in (self._old, self._next, self._now):
            if connection is not None:
                connection.close()
