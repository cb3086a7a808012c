"""The inbox of one thread: an actor's, or the main thread's."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from monarch_nb._transport.transport import Transport
from monarch_nb._wire.message import Message

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """The queue of items for one thread, oldest first; a background waiter of the reader (see
    `_transport.reader`).

    An actor's and the main thread's hold messages, a debugger's holds lines.

    `put_message` is called by the reading thread, `take_message` by the owner.
    """

    __slots__ = ("_queue", "add", "closed", "due", "hook", "park", "urgent")

    def __init__(self) -> None:
        self._queue: deque[Item] = deque()
        self.closed = False
        self.park: threading.Lock | None = None
        self.urgent = False
        self.due: float | None = None
        self.add = self._queue.append
        self.hook: Callable[[Item | None], None] | None = None
        """Called with each message, to `add` it, and with None on other events: for owners that run an event
        loop.
        """

    @property
    def ready(self) -> bool:
        """Whether a message is there, or the inbox is closed."""
        return bool(self._queue) or self.closed

    def expire(self) -> None:
        """Do nothing: an inbox is never due."""

    def put_message(self, message: Item) -> Any:
        """Add a message; return the waiter to wake."""
        if self.hook is not None:
            self.hook(message)
            return None
        self._queue.append(message)
        return self

    def put_first(self, message: Item, transport: Transport) -> None:
        """Add a message that comes before all others. Called by any thread."""
        self._queue.appendleft(message)
        self.rouse(transport)

    def take_message(self, transport: Transport) -> Item | None:
        """Wait for the next message; None once closed."""
        queue = self._queue
        while not queue:
            if self.closed:
                return None
            transport.reader.wait(self)
        return queue.popleft()

    def take_now(self) -> Item | None:
        """Return the next message if there is one."""
        return self._queue.popleft() if self._queue else None

    def remove(self: Inbox[Message], src: int, ref: int) -> Message | None:
        """Take out a message that hasn't been taken yet."""
        return self.withdraw(lambda message: message.src == src and message.ref == ref)

    def withdraw(self, is_meant: Callable[[Item], bool]) -> Item | None:
        """Remove the first waiting message that matches. Called by the reading thread."""
        for message in list(self._queue):
            if is_meant(message):
                try:
                    self._queue.remove(message)
                except ValueError:
                    return None  # the owner took it first
                return message
        return None

    def waiting(self) -> list[Item]:
        """Return the items that haven't been taken yet.

        Raises:
            RuntimeError: if the owner takes one just now.
        """
        return list(self._queue)

    def close(self, transport: Transport) -> None:
        """Close the inbox: `take_message` returns None after the remaining messages."""
        self.closed = True
        self.rouse(transport)

    def rouse(self, transport: Transport) -> None:
        """Wake the owner, who waits in the reader of `transport`. Called by any thread but the one that reads
        there.
        """
        if self.hook is not None:
            self.hook(None)
        else:
            transport.reader.notify(self)
            transport.poke()  # the owner may itself be the thread that reads the socket

    def __len__(self) -> int:
        return len(self._queue)
