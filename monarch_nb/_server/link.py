"""The connection to one mesh's controller as an observer: it doesn't keep the mesh alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from monarch_nb._client.connection_file import Connection
from monarch_nb._server.mirror import Mirror
from monarch_nb.exceptions import MeshError
from monarch_nb.status import StatusChange

if TYPE_CHECKING:
    from monarch_nb._client.state import StatusFeed
    from monarch_nb.mesh import Mesh

T = TypeVar("T")
WHO = "panel"
"""Name in the journal of users who act through the server."""
LINGER_S = 5.0
"""How long an unused connection is kept: a reloaded page returns sooner."""


class Link:
    """The connection to one mesh's controller. Owned by the event loop's thread; what may block runs in the
    pool.

    Args:
        connection: what the mesh's connection file says.
        on_close: called once the connection is closed.
    """

    def __init__(
        self, connection: Connection, pool: ThreadPoolExecutor, on_close: Callable[[Link], None]
    ) -> None:
        self.connection = connection
        self.mirror = Mirror()
        self._pool = pool
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._num_users = 0
        self._num_watchers = 0
        self._feed: StatusFeed[StatusChange] | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._opened: asyncio.Future[Mesh] = asyncio.ensure_future(self._open())
        self.closed = False

    async def _open(self) -> Mesh:
        from monarch_nb.mesh import attach

        name = self.connection.name
        return await self._loop.run_in_executor(
            self._pool, lambda: attach(name, listens=False, observes=True, what=WHO)
        )

    # --- use

    def acquire(self) -> None:
        """Add a user of the link, and keep it open."""
        self._num_users += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def release(self) -> None:
        """Remove a user of the link; after the last one, close it with a delay."""
        self._num_users -= 1
        if not self._num_users and not self.closed:
            self._closing = self._loop.call_later(LINGER_S, self.close)

    async def call(self, function: Callable[[Mesh], T]) -> T:
        """Call a function with the mesh, in a thread that may block; return its result.

        Raises:
            MeshError: if the controller can't be reached.
        """
        self.acquire()
        try:
            mesh = await asyncio.shield(self._opened)
            return await self._loop.run_in_executor(self._pool, function, mesh)
        finally:
            self.release()

    # --- watching

    async def watch(self) -> None:
        """Keep the mirror up to date until `unwatch`.

        Raises:
            MeshError: if the controller can't be reached.
        """
        self.acquire()
        self._num_watchers += 1
        try:
            mesh = await asyncio.shield(self._opened)
        except BaseException:
            self.unwatch()
            raise
        if self._feed is None and self._num_watchers:
            self._feed = mesh.watch_status(self._on_change, self._controller_gone)

    def unwatch(self) -> None:
        """Remove a watcher; after the last one, close the feed."""
        self._num_watchers -= 1
        if not self._num_watchers and self._feed is not None:
            self._feed.close()
            self._feed = None
        self.release()

    def _on_change(self, change: StatusChange) -> None:
        """Handle a change of the status, in the reading thread."""
        self._call_soon(lambda: self._take_change(change))

    def _take_change(self, change: StatusChange) -> None:
        if self._feed is not None:
            self.mirror.take_change(change)
            self._feed.taken()

    def _controller_gone(self) -> None:
        how = how_ended(self._opened.result())
        self._call_soon(lambda: self.ended(how))

    def _call_soon(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the server is closing
            self._loop.call_soon_threadsafe(callback)

    # --- the end

    def ended(self, reason: str) -> None:
        """Mark the mesh as ended, with the reason, and close the link."""
        if not self.closed:
            self.mirror.set_gone(reason)
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self.closed:
            return
        self.closed = True
        if self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None:
            self._pool.submit(_disconnect, self._opened.result())
        elif not self._opened.done():
            self._opened.add_done_callback(self._close_late)
        self._on_close(self)

    def _close_late(self, opened: asyncio.Future[Mesh]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self._pool.submit(_disconnect, opened.result())


def how_ended(mesh: Mesh) -> str:
    """Return how a mesh has ended, as a sentence, as far as that's known."""
    from monarch_nb.actor.handle import transport_of

    return transport_of(mesh).lost or f"mesh {mesh.name!r} has ended"


def _disconnect(mesh: Mesh) -> None:
    from monarch_nb.actor.handle import session_of

    with suppress(MeshError):  # the mesh may have been stopped through this connection
        session_of(mesh).close()
