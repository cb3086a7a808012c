"""Receives a mesh's state, and its changes, from the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from monarch_nb._protocol.base import Request
from monarch_nb._protocol.exits import RankExit
from monarch_nb._transport.pending import Body, Pending
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb.status.messages import StatusTaken

ChangeT = TypeVar("ChangeT")


class StatusFeed(Pending, Generic[ChangeT]):
    """The client's end of a watch on a state that changes: a mesh's status (all of it first, then changes),
    or the stops at breakpoints.

    After each change the controller waits for `taken`, and merges the changes that happen until then.
    Callbacks run in the reading thread.

    Args:
        kind: the type of a change.
        end: makes the request that ends the watch of a given number.
        on_end: called once the watch has ended.
    """

    __slots__ = ("_end", "_kind", "_on_change", "error")

    def __init__(
        self,
        transport: Transport,
        kind: Any,
        on_change: Callable[[ChangeT], None],
        end: Callable[[int], Request[None]],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(transport, (address.CONTROLLER,))
        self._kind = kind
        self._on_change = on_change
        self._end = end
        self.error = ""
        if on_end is not None:
            self.when_ready(on_end)

    def deliver(self, slot: int, body: Body) -> Pending | None:
        if body.flags & wire.ERROR:
            self.error = body.read(str)
            self.complete()
            return self
        self._on_change(body.read(self._kind))
        return None

    def taken(self) -> None:
        """Acknowledge a change, so that the controller sends the next. May be called from any thread."""
        if not self.ready:
            self.transport.ask(address.CONTROLLER, StatusTaken(self.ref))

    def close(self) -> None:
        """End the watch."""
        if not self.ready:
            self.transport.ask(address.CONTROLLER, self._end(self.ref))
            self._on_change = lambda _change: None
            self._callbacks = None
            self.complete()

    @property
    def is_awaited(self) -> bool:
        return False  # a display has no caller to whom the error could be raised

    def handles_end(self, end: RankExit) -> bool:
        return False

    def lost(self, proc: int, end: RankExit) -> Pending | None:
        # exits of ranks are the controller's business; if the controller goes, the transport is closed
        return None
