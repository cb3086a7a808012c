"""The debugger over REST and the stream: the stopped threads, and lines sent to them. A line runs code on
ranks, so it requires the right to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from jupyter_server.auth.decorator import authorized
from tornado.web import authenticated

from monarch_nb._server.bodies import BadBody, Body, read_text
from monarch_nb._server.handlers import MeshHandler
from monarch_nb._server.link import how_ended
from monarch_nb._server.meshes import Meshes
from monarch_nb._server.messages import Gone, Stops
from monarch_nb._server.watch import Send, Watch
from monarch_nb.exceptions import MeshError

if TYPE_CHECKING:
    from monarch_nb._client.state import StatusFeed
    from monarch_nb._protocol.debugging import Stop
    from monarch_nb._server.link import Link
    from monarch_nb.mesh import Mesh

COMMAND_S = 15.0
MAX_LINE = 100_000


class DebugHandler(MeshHandler):
    """The handler of requests about stops at breakpoints, and of debugger commands."""

    commands = ("debug",)

    @authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Return the stopped threads."""
        self.answer({"stops": await self.on_mesh(name, lambda mesh: mesh.debugger().stops())})

    @authenticated
    @authorized
    async def post(self, name: str) -> None:
        """Send a debugger command to stopped threads: {"ids": [1, 2], "line": "p x"}; all threads if ids is
        null.
        """
        body = self.body()
        ids, line = read_ids(body), read_text(body, "line", "")
        if len(line) > MAX_LINE:
            raise BadBody(f"a line may have {MAX_LINE:,} characters, not {len(line):,}")
        self.answer(await self.on_mesh(name, lambda mesh: mesh.debugger().command(ids, line, COMMAND_S)))


def read_ids(body: Body) -> list[int] | None:
    """Return the ids of stops; None for all.

    Raises:
        BadBody: if the field isn't a list of numbers or null.
    """
    ids = body.get("ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise BadBody(f"ids must be a list of numbers, or null for all, not {ids!r}")
    return ids


class DebugWatch(Watch):
    """A browser's watch on the stops at breakpoints."""

    def __init__(self, meshes: Meshes, send: Send, mesh: str) -> None:
        super().__init__(meshes, send)
        self._name = mesh
        self._link: Link | None = None
        self._feed: StatusFeed[list[Stop]] | None = None
        self._stops: list[Stop] | None = None

    async def begin_watch(self) -> None:
        link = self._meshes.link(self._name)
        link.acquire()
        self._link = link
        feed = await link.call(partial(self._watch, asyncio.get_running_loop()))
        if self.over:
            feed.close()
        else:
            self._feed = feed

    def _watch(self, loop: asyncio.AbstractEventLoop, mesh: Mesh) -> StatusFeed[list[Stop]]:
        """Start the watch, in a thread that may block. Its callbacks run in the reading thread."""

        def soon(callback: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the server is closing
                loop.call_soon_threadsafe(callback)

        return mesh.debugger().watch(
            lambda rows: soon(partial(self._on_stops, rows)),
            lambda: soon(partial(self._ended, how_ended(mesh))),
        )

    def _on_stops(self, stops: list[Stop]) -> None:
        self._stops = stops
        self.wake()

    def _ended(self, how: str) -> None:
        self.send_last(Gone(reason=how))

    def next_message(self) -> Stops | None:
        stops, self._stops = self._stops, None
        return None if stops is None else Stops(stops=stops)

    def close(self) -> None:
        self.over = True
        feed, self._feed = self._feed, None
        if feed is not None:
            with suppress(MeshError):
                feed.close()
        if self._link is not None:
            self._link.release()
            self._link = None
