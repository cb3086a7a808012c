"""Finds the ranks that `monarch-nb debug` talks to: those of a named mesh, or of a program's own mesh."""

from __future__ import annotations

from contextlib import suppress

from monarch_nb._client import connection_file, launch
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.session import Session
from monarch_nb._protocol.debugging import DebugGroups
from monarch_nb.exceptions import MeshError, MeshNotFound
from monarch_nb.mesh.core import Mesh


def debugged(name: str | None, *, stopped_only: bool = True) -> list[Mesh]:
    """Return the spawned meshes of `name` of which a rank stands at a breakpoint.

    Args:
        name: a mesh's name, or the pid of a program; without it, the only one of all that has something to
            debug.
        stopped_only: leave out where nobody stands.

    Raises:
        MeshNotFound: if there's no such mesh or program, or several that could be meant.
    """
    programs = connection_file.list_programs(launch.runtime_directory())
    if name is not None:
        connection = next((c for c in programs if c.name == name), None) or _named(name)
        return _meshes(connection, stopped_only=stopped_only)
    connections = [*launch.list_connections(), *programs]
    if not connections:
        raise MeshNotFound("no mesh is running, and no program has a rank that stands at a breakpoint")
    found = {c.name: meshes for c in connections if (meshes := _meshes(c, stopped_only=stopped_only))}
    if len(found) > 1:
        raise MeshNotFound(
            f"several have ranks at a breakpoint: {', '.join(found)}. Name one: monarch-nb debug NAME"
        )
    return next(iter(found.values()), [])


def _named(name: str) -> Connection:
    if name.isdigit():
        with suppress(MeshError):
            return launch.find_connection(name)
        raise MeshNotFound(
            f"no rank of the program with pid {name} stands at a breakpoint, or it has ended; monarch-nb "
            "debug without a name finds one that does"
        )
    return launch.find_connection(name)


def _meshes(connection: Connection, *, stopped_only: bool) -> list[Mesh]:
    session = Session.connect(connection, "monarch-nb debug", listens=False)
    records = session.request(DebugGroups(stopped_only))
    if not records:
        session.close()
    return [Mesh(connection.name, session, record) for record in records]
