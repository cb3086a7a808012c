"""The table of addresses and their handlers."""

from __future__ import annotations

from typing import Any

from monarch_nb._server.debug import DebugHandler
from monarch_nb._server.handlers import (
    AllocationsHandler,
    AttachHandler,
    ClustersHandler,
    HealHandler,
    InterruptHandler,
    JournalHandler,
    LogsHandler,
    MeshesHandler,
    OneAllocationHandler,
    OneMeshHandler,
    ResizeHandler,
    StacksHandler,
    VersionHandler,
    WaitHandler,
)
from monarch_nb._server.stream import StreamHandler

NAME = r"([A-Za-z_][A-Za-z0-9_-]*)"


def routes() -> list[tuple[str, type[Any]]]:
    """Return the addresses and their handlers, below the server's base URL."""
    one = rf"/monarch_nb/api/meshes/{NAME}"
    return [
        (r"/monarch_nb/api/version", VersionHandler),
        (r"/monarch_nb/api/meshes", MeshesHandler),
        (r"/monarch_nb/api/clusters", ClustersHandler),
        (r"/monarch_nb/api/allocations", AllocationsHandler),
        (rf"/monarch_nb/api/allocations/{NAME}", OneAllocationHandler),
        (rf"/monarch_nb/api/allocations/{NAME}/wait", WaitHandler),
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
