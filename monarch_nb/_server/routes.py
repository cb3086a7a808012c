"""The table of addresses and their handlers."""

from __future__ import annotations

from typing import Any

from monarch_nb._server.debug import DebugHandler
from monarch_nb._server.handlers import (
    AttachHandler,
    HealHandler,
    InterruptHandler,
    JournalHandler,
    LogsHandler,
    MeshesHandler,
    OneMeshHandler,
    ResizeHandler,
    StacksHandler,
    VersionHandler,
)
from monarch_nb._server.stream import StreamHandler

NAME = r"([A-Za-z_][A-Za-z0-9_-]*)"


def routes() -> list[tuple[str, type[Any]]]:
    """Return the addresses and their handlers, below the server's base URL."""
    one = rf"/monarch_nb/api/meshes/{NAME}"
    return [
        (r"/monarch_nb/api/version", VersionHandler),
        (r"/monarch_nb/api/meshes", MeshesHandler),
        (one, OneMeshHandler),
        (one + "/interrupt", InterruptHandler),
        (one + "/heal", HealHandler),
        (one + "/resize", ResizeHandler),
        (one + "/attach", AttachHandler),
        (one + "/logs", LogsHandler),
        (one + "/stacks", StacksHandler),
        (one + "/journal", JournalHandler),
        (one + "/debug", DebugHandler),
        (r"/monarch_nb/stream", StreamHandler),
    ]
