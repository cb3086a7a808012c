"""A real Jupyter server with our extension, and a real mesh in its runtime directory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from pytest_jupyter.jupyter_core import *  # noqa: F403 - the fixtures, for this folder only: one of them is automatic
from pytest_jupyter.jupyter_server import *  # noqa: F403
from pytest_jupyter.pytest_tornasync import *  # noqa: F403

from monarch_nb import mesh as meshes
from monarch_nb._client import session as sessions
from monarch_nb.mesh import Mesh

PATIENCE_S = 60.0


@pytest.fixture
def jp_server_config() -> Any:
    return {"ServerApp": {"jpserver_extensions": {"monarch_nb": True}}}


@pytest.fixture
def demo(jp_environ: object) -> Iterator[Mesh]:
    """A mesh "demo" of four ranks: started by a program, not by the server."""
    before = sessions._current
    mesh = meshes.start("demo", {"gpus": 4})
    yield mesh
    sessions._current = before
    if not mesh._transport.lost and not mesh._transport.closed:
        mesh.stop(grace_s=0.0).get(30)


class Socket:
    """A page's WebSocket: messages by watch, each taken at once unless told otherwise."""

    def __init__(self, socket: Any) -> None:
        self.raw = socket
        self.takes = True

    async def send(self, **message: Any) -> None:
        await self.raw.write_message(json.dumps(message))

    async def read(self) -> dict[str, Any]:
        text = await asyncio.wait_for(self.raw.read_message(), PATIENCE_S)
        assert text is not None, "the server has closed the connection"
        message: dict[str, Any] = json.loads(text)
        if self.takes and message.get("id"):
            await self.send(op="taken", id=message["id"])
        return message

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first message that is wanted."""
        while True:
            message = await self.read()
            if wanted(message):
                return message


@pytest.fixture
def page(
    jp_ws_fetch: Any, jp_serverapp: Any, jp_asyncio_loop: asyncio.AbstractEventLoop
) -> Iterator[Callable[[], Awaitable[Socket]]]:
    """Open pages."""
    opened: list[Socket] = []

    async def open_page() -> Socket:
        socket = Socket(await jp_ws_fetch("monarch_nb", "stream"))
        opened.append(socket)
        hello = await socket.read()
        assert hello["type"] == "hello" and hello["protocol"] == 1
        return socket

    async def close_pages() -> None:
        for socket in opened:
            socket.raw.close()

    yield open_page
    jp_asyncio_loop.run_until_complete(close_pages())


@pytest.fixture
def api(jp_fetch: Any) -> Callable[..., Awaitable[Any]]:
    """Call REST; returns what was answered."""

    async def call(*path: str, method: str = "GET", body: object = None, **params: Any) -> Any:
        options: dict[str, Any] = {"method": method, "params": params, "request_timeout": PATIENCE_S}
        if method == "POST":
            options["body"] = json.dumps(body) if not isinstance(body, str) else body
        answer = await jp_fetch("monarch_nb", "api", *path, **options)
        return json.loads(answer.body) if answer.body else None

    return call
