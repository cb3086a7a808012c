"""`monarch-nb dashboard`: the panel without Jupyter. One per user, on this machine's loopback only.

It's tornado with the extension's own handlers, and Jupyter's identity provider: a token in the address that
is printed, a cookie from then on. Nothing else of a Jupyter server is there: no kernels, no files, no
terminals. Where it is stands in a file that only this user can read.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from monarch_nb._client.dashboard import HOST, Place, place_file
from monarch_nb.exceptions import MeshUsageError

WS_PING_MS = 30_000
"""Time without an answer after which a page counts as gone; also tornado's ping interval."""


def serve(port: int, on_ready: Callable[[Place], None]) -> None:
    """Run the dashboard's server until SIGINT or SIGTERM.

    Args:
        port: the tcp port; 0: any free one.
        on_ready: called with the address of the server.

    Raises:
        MeshUsageError: if the port is taken.
    """
    asyncio.run(_serve(port, on_ready))


async def _serve(port: int, on_ready: Callable[[Place], None]) -> None:
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_sockets

    from monarch_nb._server.meshes import Meshes

    try:
        sockets = bind_sockets(port, HOST)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MeshUsageError(
            f"port {port} can't be used: {why}. Take another: --port N, or none for one that is free"
        ) from None
    port = sockets[0].getsockname()[1]
    place = Place(os.getpid(), f"http://{HOST}:{port}/monarch_nb/dashboard", secrets.token_urlsafe(32))
    meshes = Meshes()
    server = HTTPServer(_application(meshes, place.token))
    server.add_sockets(sockets)
    file = place_file()
    _write(file, place)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    try:
        on_ready(place)
        await over.wait()
    finally:
        with suppress(OSError, ValueError):
            if json.loads(file.read_text())["pid"] == place.pid:
                file.unlink()
        server.stop()
        await server.close_all_connections()
        meshes.close()


def _application(meshes: Any, token: str) -> Any:
    from jupyter_server.auth.authorizer import AllowAllAuthorizer
    from jupyter_server.auth.identity import IdentityProvider
    from tornado.web import Application

    from monarch_nb._server import page, routes

    identity = IdentityProvider(token=token)
    return Application(
        [*routes.routes(), *page.routes(), (r".*", _nowhere())],
        base_url="/",
        cookie_secret=secrets.token_bytes(32),
        xsrf_cookies=True,
        identity_provider=identity,
        authorizer=AllowAllAuthorizer(identity_provider=identity),
        allow_remote_access=False,
        local_hostnames=["localhost"],
        login_url="/monarch_nb/no-token",
        ws_ping_timeout=WS_PING_MS,
        log_function=lambda handler: None,
        server_root_dir=os.getcwd(),
        monarch_nb_meshes=meshes,
    )


def _nowhere() -> type[Any]:
    """Return the handler of all other addresses, and of requests without a token."""
    from tornado.web import RequestHandler

    class Nowhere(RequestHandler):
        def prepare(self) -> None:
            is_login = self.request.path == "/monarch_nb/no-token"
            self.set_status(403 if is_login else 404)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(
                "Open the address that `monarch-nb dashboard` has printed: it has the token."
                if is_login
                else "There's nothing here."
            )

    return Nowhere


def _write(file: Path, place: Place) -> None:
    temporary = file.with_suffix(f".{place.pid}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        json.dump(asdict(place), out)
    os.replace(temporary, file)
