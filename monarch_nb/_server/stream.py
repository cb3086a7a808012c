"""Serves the WebSocket: sends a page the changes of what it watches.

For each watch at most one message is under way: the next one is sent when the browser has said `taken`. Until
then changes are put together (state, list) or stay where they are, in the journal (logs). So a slow browser
costs nothing here, and is never behind.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from msgspec.structs import replace
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from monarch_nb._server import messages
from monarch_nb._server.bodies import Body, read_watch
from monarch_nb._server.debug import DebugWatch
from monarch_nb._server.meshes import Meshes, MeshList
from monarch_nb._server.messages import (
    Failed,
    Gone,
    WatchAllocations,
    WatchDebug,
    WatchLogs,
    WatchMeshes,
    WatchMessage,
    WatchRequest,
    WatchStatus,
)
from monarch_nb._server.protocol import PROTOCOL
from monarch_nb._server.watch import Send, Watch
from monarch_nb._version import __version__
from monarch_nb.exceptions import MeshError
from monarch_nb.status import FullStatus, MeshSummary

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch_nb._protocol.logs import LogLine
    from monarch_nb._server.link import Link
    from monarch_nb._server.messages import AllocationRow
    from monarch_nb.mesh import Mesh
    from monarch_nb.mesh.log_page import LogTail

FOLLOW_S = 0.25
"""Interval at which a followed log is read from the journal."""
LIST_S = 0.1
"""Minimum interval between two lists of meshes."""
MAX_WATCHES = 200
MAX_MESSAGE_BYTES = 1 << 16


class ListWatch(Watch):
    """A browser's watch on the list of meshes."""

    _list: MeshList | None = None
    _sent: list[MeshSummary] | None = None
    _timer: asyncio.TimerHandle | None = None

    async def begin_watch(self) -> None:
        self._list = MeshList(self._meshes, self._changed)

    def _changed(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LIST_S, self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        self.wake()

    def next_message(self) -> WatchMessage | None:
        rows = self._list.rows if self._list is not None else None
        if rows is None or rows == self._sent:
            return None
        self._sent = rows
        return messages.Meshes(meshes=rows)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._list is not None:
            self._list.close()
            self._list = None


class AllocationsWatch(Watch):
    """A browser's watch on the requests for hosts of engines."""

    _stop: Callable[[], None] | None = None
    _sent: list[AllocationRow] | None = None

    async def begin_watch(self) -> None:
        self._stop = self._meshes.allocations.watch(self.wake)
        self.wake()

    def next_message(self) -> WatchMessage | None:
        rows = self._meshes.allocations.rows
        if rows is None or rows == self._sent:
            return None
        self._sent = rows
        return messages.Allocations(allocations=rows)

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None


class StatusWatch(Watch):
    """A browser's watch on a mesh's state."""

    def __init__(self, meshes: Meshes, send: Send, mesh: str) -> None:
        super().__init__(meshes, send)
        self._name = mesh
        self._link: Link | None = None
        self._stop: Callable[[], None] | None = None
        self._seen = -1

    async def begin_watch(self) -> None:
        link = self._meshes.link(self._name)
        await link.watch()
        if self.over:
            link.unwatch()
            return
        self._link, self._stop = link, link.mirror.listen(self.wake)
        self.wake()

    def wake(self) -> None:
        super().wake()
        if self._link is not None and self._link.mirror.gone and not self.over:
            self.send_last(Gone(reason=self._link.mirror.gone))

    def next_message(self) -> WatchMessage | None:
        mirror = self._link.mirror if self._link is not None else None
        change = mirror.unseen_changes(self._seen) if mirror is not None else None
        if mirror is None or change is None:
            return None
        self._seen = mirror.rows.version
        if isinstance(change, FullStatus):
            return messages.Status(status=change.status)
        return messages.Delta(mesh=change.mesh, hosts=change.hosts, ranks=change.ranks)

    def close(self) -> None:
        self.over = True
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._link is not None:
            self._link.unwatch()
            self._link = None


class LogsWatch(Watch):
    """A watch on the output of ranks, from now on or from a position."""

    def __init__(self, meshes: Meshes, send: Send, asked: WatchLogs) -> None:
        super().__init__(meshes, send)
        self._name, self._ranks, self._grep = asked.mesh, asked.ranks or "all", asked.grep
        self._after = asked.after
        self._tail: LogTail | None = None
        self._lines: list[LogLine] = []
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None

    async def begin_watch(self) -> None:
        from monarch_nb.mesh.log_page import compile_pattern

        compile_pattern(self._grep)
        link = self._meshes.link(self._name)
        await link.call(lambda mesh: mesh.select(self._ranks))
        if self.over:
            return
        link.acquire()
        self._link = link
        self._task = asyncio.ensure_future(self._follow(link))

    async def _follow(self, link: Link) -> None:
        while not self.over:
            try:
                if self._is_ready and not self._lines:
                    await self._read(link)
                    self.wake()
            except MeshError as error:
                self.send_last(Gone(reason=link.mirror.gone or str(error)))
                return
            except Exception as error:  # for example a position that no journal has: the watcher is told
                self.send_last(Failed(message=could_not(error)))
                return
            await asyncio.sleep(FOLLOW_S if not self._lines else 0.02)

    async def _read(self, link: Link) -> None:
        tail = self._tail
        if tail is None:
            self._tail = await link.call(self._first)
        else:
            self._lines = await link.call(tail.read)

    def _first(self, mesh: Mesh) -> LogTail:
        from monarch_nb.mesh.log_page import LogTail, read_page

        ranks = mesh.select(self._ranks)
        after = read_page(mesh, ranks, limit=1).after if self._after is None else self._after
        return LogTail(ranks, after, self._grep)

    def next_message(self) -> WatchMessage | None:
        if not self._lines:
            return None
        lines, self._lines = self._lines, []
        return messages.Log(lines=lines, after=self._tail.after if self._tail is not None else 0)

    def close(self) -> None:
        self.over = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._link is not None:
            self._link.release()
            self._link = None


class StreamHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """The WebSocket handler of a browser's connection."""

    auth_resource = "monarch_nb"

    @property
    def max_message_size(self) -> int:
        """The maximum size of a message in bytes; a connection that sends a longer one is closed."""
        return MAX_MESSAGE_BYTES

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log an error without the request's address, which may contain a token."""
        self.log.error(
            "Uncaught exception in %s %s", self.request.method, self.request.path, exc_info=(typ, value, tb)
        )

    def initialize(self, **kwargs: Any) -> None:
        super().initialize(**kwargs)
        self._watches: dict[int, Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open the connection if the user has permission to read."""
        allowed = self.authorizer.is_authorized(self, self.current_user, "read", self.auth_resource)
        if asyncio.isfuture(allowed) or asyncio.iscoroutine(allowed):
            allowed = await allowed
        if not allowed:
            raise HTTPError(403)
        await super().get(*args, **kwargs)

    async def open(self, *args: Any, **kwargs: Any) -> None:
        """Send the server's version and identity."""
        super().open(*args, **kwargs)
        self._write(messages.Hello(version=__version__, protocol=PROTOCOL))

    def on_message(self, data: str | bytes) -> None:
        """Handle a message; an invalid one is answered with an error, and the connection stays open."""
        try:
            message = json.loads(data)
            op, number = message["op"], message["id"]
            if not isinstance(number, int):
                raise TypeError("id")
        except (ValueError, TypeError, KeyError, RecursionError):
            self._write(Failed(message='expected {"op": "watch", "id": 1, "what": ...}'))
            return
        if op == "watch":
            self._begin_watch(number, message)
        elif op == "taken" and number in self._watches:
            self._watches[number].taken()
        elif op == "unwatch":
            self._drop(number)

    def _begin_watch(self, number: int, message: Body) -> None:
        self._drop(number)
        meshes: Meshes = self.settings["monarch_nb_meshes"]

        def send(update: WatchMessage) -> None:
            self._write(replace(update, id=number))
            if isinstance(update, Gone | Failed):
                self._watches.pop(number, None)

        try:
            watch = _make(meshes, send, read_watch(number, message))
            if len(self._watches) >= MAX_WATCHES:
                raise ValueError(f"one page may watch {MAX_WATCHES} things")
        except (ValueError, RecursionError) as error:
            send(Failed(message=str(error)))
            return
        self._watches[number] = watch
        task = asyncio.ensure_future(self._start(number, watch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, number: int, watch: Watch) -> None:
        try:
            await watch.begin_watch()
        except (MeshError, ValueError, LookupError) as error:
            watch.send_last(Failed(message=str(error)))
        except Exception as error:  # the asker waits for an answer, whatever fails
            self.log.warning("monarch_nb could not watch %r", watch, exc_info=error)
            watch.send_last(Failed(message=could_not(error)))

    def _drop(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None:
            watch.over = True
            watch.close()

    def _write(self, message: messages.ServerMessage | WatchMessage) -> None:
        with suppress(WebSocketClosedError):
            self.write_message(msgspec.json.encode(message).decode())

    def on_close(self) -> None:
        """Drop all watches, because the browser has disconnected."""
        super().on_close()
        for number in list(self._watches):
            self._drop(number)


def could_not(error: Exception) -> str:
    """Return the answer to a request that failed with an unexpected error."""
    return f"the Jupyter server could not do this: {type(error).__name__}: {error}"


def _make(meshes: Meshes, send: Send, asked: WatchRequest) -> Watch:
    if isinstance(asked, WatchMeshes):
        return ListWatch(meshes, send)
    if isinstance(asked, WatchAllocations):
        return AllocationsWatch(meshes, send)
    if isinstance(asked, WatchDebug):
        return DebugWatch(meshes, send, asked.mesh)
    if isinstance(asked, WatchStatus):
        return StatusWatch(meshes, send, asked.mesh)
    return LogsWatch(meshes, send, asked)
