"""A browser's watch on one object: at most one message of it is under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from monarch_nb._server.meshes import Meshes
from monarch_nb._server.messages import Failed, Gone, WatchMessage

Send = Callable[[WatchMessage], None]


class Watch(ABC):
    """The base of watches of a browser. Owned by the event loop's thread."""

    def __init__(self, meshes: Meshes, send: Send) -> None:
        self._meshes = meshes
        self._send = send
        self._is_ready = True
        self.over = False

    def taken(self) -> None:
        """Record that the browser has received the last message, and send new changes."""
        self._is_ready = True
        self.wake()

    def wake(self) -> None:
        """Send changes, if the browser has received the last message."""
        if self._is_ready and not self.over:
            message = self.next_message()
            if message is not None:
                self._is_ready = False
                self._send(message)

    def send_last(self, message: Gone | Failed) -> None:
        """Send the last message, and close the watch."""
        if not self.over:
            self.over = True
            self._send(message)
            self.close()

    @abstractmethod
    async def begin_watch(self) -> None:
        """Start the watch."""

    @abstractmethod
    def next_message(self) -> WatchMessage | None:
        """Return a message with all new changes; None if there are none."""

    @abstractmethod
    def close(self) -> None:
        """Stop the watch."""
