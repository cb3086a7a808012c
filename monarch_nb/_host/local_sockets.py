"""A host process' sockets to the other processes of its machine."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

from monarch_nb._host.loop import Loop, guarded
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.local_sockets import Joiner, LocalReceiver, LocalSender, SendQueues
from monarch_nb._wire.message import Message

_ROUNDS = 16
"""Maximum number of consecutive looks for messages before other callbacks run."""


class LocalSockets:
    """The sockets of a host process to the other processes of this machine. Owned by the loop's thread.

    Args:
        directory: directory of the sockets.
        on_message: called for each message that arrives.
    """

    def __init__(self, loop: Loop, directory: str, on_message: Callable[[Message], None]) -> None:
        self._loop = loop
        self._directory = directory
        self._on_message = on_message
        self._receiver: LocalReceiver | None = None
        self._arrived: deque[bytes] = deque()
        self._joiner = Joiner()
        self._queues = SendQueues(loop.call_later)
        self._routes: dict[int, LocalSender] = {}
        loop.watch_file(self._queues.fileno(), self._queues.run)

    def listen(self, me: int) -> None:
        """Begin to receive, as process `me`."""
        self._receiver = LocalReceiver(address.socket_path(self._directory, me))
        self._loop.watch_file(self._receiver.fileno(), self._receive)

    def _receive(self) -> None:
        for _ in range(_ROUNDS):
            if not self._receive_some():
                return

    def _receive_some(self) -> bool:
        """Take what has come; False if that was nothing. What came before an error is taken, too: nothing
        would remind of it.
        """
        arrived, receiver = self._arrived, self._receiver
        try:
            return receiver is not None and receiver.receive(0.0, arrived)
        finally:
            while arrived:
                guarded(partial(self._take_piece, arrived.popleft()))

    def _take_piece(self, piece: bytes) -> None:
        frame = self._joiner.whole(piece)
        if frame is not None:
            self._joiner.done(piece)
            self._on_message(wire.unpack(frame))

    @property
    def routes(self) -> Collection[int]:
        """The processes that something was sent to."""
        return self._routes.keys()

    def has_route(self, dst: int) -> bool:
        """Say whether something was sent to a process of this machine."""
        return dst in self._routes

    def listens(self, dst: int) -> bool:
        """Say whether a process of this machine has its socket."""
        return os.path.exists(address.socket_path(self._directory, dst))

    def send(self, dst: int, frame: bytes) -> None:
        """Send to a process of this machine, now or as soon as it listens."""
        route = self._routes.get(dst)
        if route is None:
            path = address.socket_path(self._directory, dst)
            route = self._routes[dst] = LocalSender(path, self._queues)
        route.send(frame)

    def drop_route(self, dst: int) -> None:
        """Close the route to a process that has ended."""
        route = self._routes.pop(dst, None)
        if route is not None:
            route.close()

    def close(self, linger_s: float) -> None:
        """Close everything; queued messages are sent within `linger_s`, or lost."""
        until = self._loop.clock() + linger_s
        for route in self._routes.values():
            route.close(until - self._loop.clock())
        self._routes.clear()
        self._queues.close()
        if self._receiver is not None:
            self._receiver.close()
