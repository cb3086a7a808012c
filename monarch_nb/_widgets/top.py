"""Displays a mesh's state periodically: `monarch-nb top`, `%mesh top`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch_nb.status import MeshStatus, StatusChange, apply

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh


def follow(
    mesh: Mesh, show: Callable[[MeshStatus], None], *, every_s: float = 0.5, count: int | None = None
) -> None:
    """Show a mesh's state again and again as it changes, until it ends, or is interrupted.

    Args:
        every_s: seconds between two pictures, at least.
        count: how many pictures.
    """
    Watch(mesh).run(show, every_s=every_s, count=count)


class Watch:
    """The latest state of a mesh, for a display that polls it. `stop_showing` may be called from any
    thread.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._new = threading.Event()
        self._over = threading.Event()
        self._status: MeshStatus | None = None
        self._last = 0.0
        self._feed = mesh.watch_status(self._take_change, self.stop_showing)

    def run(
        self, show: Callable[[MeshStatus], None], *, every_s: float = 0.5, count: int | None = None
    ) -> None:
        """Show the state again and again as it changes, until `stop_showing` is called or the mesh ends."""
        try:
            while count is None or count > 0:
                status = self._next(every_s)
                if status is None:
                    return
                show(status)
                count = None if count is None else count - 1
        finally:
            self._feed.close()

    def stop_showing(self) -> None:
        """Stop the display."""
        self._over.set()
        self._new.set()

    def _take_change(self, change: StatusChange) -> None:
        self._status = apply(self._status, change)
        self._new.set()

    def _next(self, every_s: float) -> MeshStatus | None:
        """Return a state that is newer than the last one; None if there's none any more."""
        wait_s = self._last + every_s - time.monotonic()
        if wait_s > 0:
            self._over.wait(wait_s)
        if self._status is not None:
            self._feed.taken()
        self._new.wait()
        self._new.clear()
        self._last = time.monotonic()
        return None if self._over.is_set() else self._status
