"""The context of the running code: the message being handled, and the cell that caused it.

One context variable, so that threads, tasks and callbacks that carry their context keep sending output to the
right cell.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class CallContext:
    """The known facts about the message that is being handled.

    Attributes:
        origin: number of the cell that caused the message; 0 if none did.
        slot: this rank's position in the slice that the message was sent to.
        extent: that slice's extent, encoded as it came.
        actor: the actor that runs (None: the rank's main thread or a client).
        src: proc id of the sender.
    """

    __slots__ = ("actor", "extent", "origin", "slot", "src")

    def __init__(
        self, origin: int = 0, slot: int = 0, extent: bytes = b"", actor: Any = None, src: int = 0
    ) -> None:
        self.origin = origin
        self.slot = slot
        self.extent = extent
        self.actor = actor
        self.src = src


NO_CALL = CallContext()
call_context: ContextVar[CallContext] = ContextVar("monarch_nb_call", default=NO_CALL)


def current_origin() -> int:
    """Return the number of the cell on whose behalf this code runs."""
    return call_context.get().origin
