"""The interfaces through which services send messages: most services need no more of the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from monarch_nb._protocol.base import Event


class Sends(Protocol):
    """The interface that sends messages to processes of the mesh, by their proc ids."""

    def event(self, dst: int, event: Event, src: int | None = None) -> None:
        """Send an event to one process; `src`: its sender, if not this process."""
        ...

    def event_to_all(self, procs: Sequence[int], event: Event) -> None:
        """Send an event to several processes."""
        ...

    def reply(self, dst: int, ref: int, value: object, *, error: bool = False, last: bool = False) -> None:
        """Answer a request."""
        ...


class SendsFrames(Sends, Protocol):
    """The interface that sends encoded frames, and knows which processes are told of everything."""

    def send_local(self, dst: int, frame: bytes) -> None:
        """Send a frame to a process of this machine."""
        ...

    def send_to_rank(self, proc: int, frame: bytes) -> None:
        """Send a frame to a rank or a program, here or elsewhere."""
        ...

    def everybody(self) -> list[int]:
        """Return the proc ids of all processes that are told of ends: clients, ranks, other hosts."""
        ...
