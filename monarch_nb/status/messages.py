"""Types of requests to a controller about a mesh's state."""

from __future__ import annotations

from monarch_nb._protocol.base import Request
from monarch_nb.status.model import MeshStatus


class WatchStatus(Request[None], frozen=True):
    """Send a group's state, and then what changes, as fast as it's taken: each a `StatusChange`."""

    group: str


class StatusTaken(Request[None], frozen=True):
    """The state that was sent has been taken."""

    watch: int


class UnwatchStatus(Request[None], frozen=True):
    """Watch no longer."""

    watch: int


class Snapshot(Request[MeshStatus], frozen=True):
    """Return a group's state. `fresh`: whether all hosts look at everything first."""

    group: str
    fresh: bool = True
