"""Keeps the list of this user's meshes, and the connections to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from monarch_nb._client import launch
from monarch_nb._client.connection_file import Connection
from monarch_nb._server.allocations import AllocationService, names_that_wait
from monarch_nb._server.link import Link
from monarch_nb._server.repeating import repeat
from monarch_nb.exceptions import MeshError, MeshNotReady
from monarch_nb.status import MeshSummary

LOOK_S = 1.0
RETRY_S = 10.0
NUM_THREADS = 8


class Meshes:
    """The list of this user's meshes, with connections to them. Owned by the event loop's thread. Connections
    are made when they're needed, and closed soon after.
    """

    def __init__(self) -> None:
        self._links: dict[tuple[str, int], Link] = {}
        self.pool = ThreadPoolExecutor(NUM_THREADS, "monarch-nb")
        self.allocations = AllocationService(self.pool)

    def link(self, name: str) -> Link:
        """Return the connection to the mesh of this name.

        Raises:
            MeshNotFound: if the mesh doesn't exist, or belongs to another version.
        """
        return self.link_to(launch.find_connection(name))

    def link_to(self, connection: Connection) -> Link:
        """Return the connection to the controller of a connection file."""
        key = (connection.name, connection.pid)
        link = self._links.get(key)
        if link is None or link.closed:
            link = self._links[key] = Link(connection, self.pool, self._forget)
        return link

    def _forget(self, link: Link) -> None:
        key = (link.connection.name, link.connection.pid)
        if self._links.get(key) is link:
            del self._links[key]

    @property
    def num_links(self) -> int:
        """The number of open connections."""
        return len(self._links)

    async def summaries(self) -> list[MeshSummary]:
        """Return a row for each running mesh, including those that don't answer."""
        return list(await asyncio.gather(*(self._summary(c) for c in launch.list_all_connections())))

    async def _summary(self, connection: Connection) -> MeshSummary:
        trouble = launch.why_unusable(connection)
        if not trouble:
            try:
                found = await self.link_to(connection).call(lambda mesh: mesh.status(fresh=False))
                return found.summary()
            except MeshNotReady:
                return MeshSummary(connection.name, connection.pid, waits=True)
            except MeshError as error:
                trouble = str(error)
        return MeshSummary(connection.name, connection.pid, trouble=trouble)

    def close(self) -> None:
        """Close all connections."""
        for link in list(self._links.values()):
            link.close()
        self.pool.shutdown(wait=True)


class MeshList:
    """The list of meshes, kept up to date for one reader.

    Args:
        on_change: called when a row is different, or there are other rows.
    """

    def __init__(self, meshes: Meshes, on_change: Callable[[], None]) -> None:
        self._meshes = meshes
        self._on_change = on_change
        self._links: dict[tuple[str, int], Link] = {}
        self._stops: dict[tuple[str, int], Callable[[], None]] = {}
        self._troubles: dict[tuple[str, int], tuple[str, float]] = {}
        self._waiting: set[tuple[str, int]] = set()
        """Those that have no ranks yet."""
        repeating = repeat(self._look, LOOK_S, "the list of meshes can't be brought up to date")
        self._task = asyncio.ensure_future(repeating)
        self._rows: list[MeshSummary] | None = None

    @property
    def rows(self) -> list[MeshSummary] | None:
        """The rows; None before the first look."""
        if self._rows is None:
            return None
        rows = []
        for row in self._rows:
            link = self._links.get((row.name, row.pid))
            rows.append(link.mirror.summary() if link is not None and link.mirror.known else row)
        return rows

    async def _look(self) -> None:
        """Bring the list up to date. A mesh that waits for its hosts stands in the list of requests."""
        waiting = await asyncio.get_running_loop().run_in_executor(self._meshes.pool, names_that_wait)
        connections = {(c.name, c.pid): c for c in launch.list_all_connections() if c.name not in waiting}
        for key in [k for k in self._links if k not in connections or self._links[k].closed]:
            self._drop(key)
        await asyncio.gather(
            *(self._watch(key, c) for key, c in connections.items() if key not in self._links)
        )
        self._waiting &= connections.keys()
        rows = [
            MeshSummary(c.name, c.pid, trouble=self._trouble(key), waits=key in self._waiting)
            for key, c in connections.items()
        ]
        if rows != self._rows:
            self._rows = rows
            self._on_change()

    def _trouble(self, key: tuple[str, int]) -> str:
        return self._troubles.get(key, ("", 0.0))[0]

    async def _watch(self, key: tuple[str, int], connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        text, again = self._troubles.get(key, ("", 0.0))
        if text and now < again:
            return
        trouble = launch.why_unusable(connection)
        if not trouble:
            link = self._meshes.link_to(connection)
            self._waiting.discard(key)
            try:
                await link.watch()
            except MeshNotReady:
                self._waiting.add(key)
                link.close()
            except (MeshError, ValueError) as error:
                trouble = str(error)
                link.close()
            except Exception as error:  # of one mesh: the others are shown
                trouble = f"mesh {connection.name!r} can't be watched: {type(error).__name__}: {error}"
                link.close()
            else:
                self._links[key] = link
                self._stops[key] = link.mirror.listen(self._on_change)
        self._troubles.pop(key, None)
        if trouble:
            self._troubles[key] = (trouble, now + RETRY_S)

    def _drop(self, key: tuple[str, int]) -> None:
        self._stops.pop(key)()
        self._links.pop(key).unwatch()

    def close(self) -> None:
        """Stop looking."""
        self._task.cancel()
        for key in list(self._links):
            self._drop(key)
