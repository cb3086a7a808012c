"""The part of a future that `concurrent.futures.wait` and `as_completed` use."""

from __future__ import annotations

import threading
from typing import Any, Protocol

RUNNING = "RUNNING"
FINISHED = "FINISHED"
"""The states' names in `concurrent.futures`."""


class Waiter(Protocol):
    """The interface of objects that wait for several futures; `concurrent.futures` has the classes."""

    def add_result(self, future: Any) -> None:
        """Handle a future that has a value."""

    def add_exception(self, future: Any) -> None:
        """Handle a future that has failed."""


class Awaited:
    """A future's state for such a wait. It's made only when a thread waits for several futures.

    Attributes:
        condition: held while the state changes and while waiters are added.
        waiters: waiters that are notified.
        state: as `concurrent.futures` calls it.
    """

    __slots__ = ("condition", "state", "waiters")

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.waiters: list[Waiter] = []
        self.state = RUNNING

    def finish(self, future: Any) -> None:
        """Notify the waiters. The answer is read here only if one of them wants to know whether it's an
        error: otherwise the thread that asks for the value reads it.
        """
        with self.condition:
            self.state = FINISHED
            asks = any(getattr(waiter, "stop_on_exception", False) for waiter in self.waiters)
            has_failed = asks and future.exception() is not None
            for waiter in self.waiters:
                (waiter.add_exception if has_failed else waiter.add_result)(future)
