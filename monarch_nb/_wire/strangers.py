"""Connections to a listening port that haven't shown a known key yet: their cost is bounded.

They're cut after `HANDSHAKE_S`, or when there are too many: of the address with the most, the one that came
first, so that nobody keeps hosts of other addresses out. What each may have in memory is one frame.
"""

from __future__ import annotations

import socket as sockets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from monarch_nb._wire.connection_events import read_event
from monarch_nb._wire.pieces import FRAME_BYTES

HANDSHAKE_S = 5.0
MAX_STRANGERS = 64
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED

Peer = tuple[Any, ...]


class Strangers:
    """The watch on the connections of a listening socket. Make it before the socket binds; owned by the
    thread that uses the socket.

    Args:
        on_gone: called with the descriptor of each connection that has ended.
        expected: returns how many are about to dial: so many may be strangers twice over, if that's more than
            `MAX_STRANGERS`. The hosts of a large mesh come at the same moment.

    Attributes:
        monitor: call `read_event` whenever it's readable.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        on_gone: Callable[[int], None] = lambda _fd: None,
        expected: Callable[[], int] = lambda: 0,
    ) -> None:
        self._socket, self._on_gone, self._expected = socket, on_gone, expected
        self._waiting: dict[int, Peer] = {}
        """Connections by descriptor, in order of arrival."""
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        address = f"inproc://monarch_nb-strangers-{id(self):x}"
        socket.monitor(address, _EVENTS)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.RCVHWM, 0)  # ZeroMQ's own thread blocks while the socket is full
        self.monitor.connect(address)

    def read_event(self) -> None:
        """Handle an event of the monitored socket."""
        event, fd = read_event(self.monitor)
        if event == zmq.EVENT_DISCONNECTED:
            self._waiting.pop(fd, None)
            self._on_gone(fd)
            return
        peer = peer_of(fd)
        if peer is not None:
            self._waiting.pop(fd, None)
            self._waiting[fd] = peer
        while len(self._waiting) > MAX_STRANGERS and len(self._waiting) > 2 * self._expected():
            self._cut(self._least_welcome())

    def knows(self, frame: zmq.Frame) -> None:
        """Record that the sender of a frame has shown a known key, and so is no stranger any more."""
        if self._waiting:
            self._waiting.pop(int(frame.get(zmq.SRCFD)), None)

    def _least_welcome(self) -> int:
        most = Counter(peer[0] for peer in self._waiting.values()).most_common(1)[0][0]
        return next(fd for fd, peer in self._waiting.items() if peer[0] == most)

    def _cut(self, fd: int) -> None:
        end_connection(fd, self._waiting.pop(fd))

    def close(self) -> None:
        """Watch no longer; call it before the socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close(0)


def end_connection(fd: int, peer: Peer) -> None:
    """End a connection with somebody: ZeroMQ reads its end, and closes it."""
    with suppress(OSError), sockets.fromfd(fd, sockets.AF_INET, sockets.SOCK_STREAM) as connection:
        if connection.getpeername() == peer:  # otherwise the descriptor belongs to another connection by now
            connection.shutdown(sockets.SHUT_RDWR)


def peer_of(fd: int) -> Peer | None:
    """Return the process at the other end; None if the connection has ended."""
    with suppress(OSError), sockets.fromfd(fd, sockets.AF_INET, sockets.SOCK_STREAM) as connection:
        found = connection.getpeername()
        return found if isinstance(found, tuple) else None
    return None
