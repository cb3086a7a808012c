"""Types of requests to a controller about a mesh's state."""

from __future__ import annotations

from monarch_nb._protocol.base import Request
from monarch_nb.status.model import MeshStatus


class WatchStatus(Request[None], frozen=True):
    """Send a group's state, and then the changes, as fast as the client acknowledges them: each a
    `StatusChange`.
    """

    group: str


class StatusTaken(Request[None], frozen=True):
    """Acknowledge the state that was sent."""

    watch: int


class UnwatchStatus(Request[None], frozen=True):
    """End a watch on a group's state."""

    watch: int


class Snapshot(Request[MeshStatus], frozen=True):
    """Return a group's state. `fresh`: whether all hosts take new readings first."""

    group: str
    fresh: bool = True
