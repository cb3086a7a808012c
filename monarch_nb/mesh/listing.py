"""Lists the meshes of this user, a row each: size, state, age, creator. All are asked at once, so that none
delays the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from monarch_nb._client.connection_file import Connection
from monarch_nb._client.launch import list_all_connections, why_unusable
from monarch_nb._protocol.states import RankState
from monarch_nb._units import duration
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshNotReady
from monarch_nb.mesh.starting import attach
from monarch_nb.status import TROUBLED, MeshStatus

ANSWER_S = 3.0


@dataclass(frozen=True)
class Row:
    """One row of a list of meshes.

    Attributes:
        state: ok or busy, or the trouble.
        age: seconds since it started.
        owner: the program that has started it.
        num_clients: number of connected programs.
    """

    name: str
    pid: int
    size: str
    state: str
    age: str
    owner: str
    num_clients: int | None

    def cells(self) -> tuple[str, ...]:
        """Return the row's columns."""
        clients = (
            ""
            if self.num_clients is None
            else f"{self.num_clients or 'no'} client{'s' * (self.num_clients != 1)}"
        )
        return self.name, self.size, self.state, self.age, self.owner, clients, f"controller pid {self.pid}"


def list_rows(timeout_s: float = ANSWER_S) -> list[Row]:
    """Return a row for each mesh of this user that runs."""
    connections = list_all_connections()
    found: dict[str, Row] = {}

    def ask(connection: Connection) -> None:
        try:
            found[connection.name] = _asked(connection)
        except Exception as error:  # an error of one mesh is reported in its row
            found[connection.name] = _unknown(connection, str(error).partition("\n")[0][:80])

    threads = [
        threading.Thread(target=ask, args=(c,), name="monarch-nb-list", daemon=True) for c in connections
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [found.get(c.name) or _unknown(c, f"no answer within {timeout_s:g} s") for c in connections]


def table_text(rows: Sequence[Row], current: str | None = None) -> str:
    """Return rows as a table; the mesh in use is marked."""
    lines = [("name", "ranks", "state", "up", "started by", "in use by", ""), *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    marks = [" ", *("*" if row.name == current else " " for row in rows)]
    return "\n".join(
        f"{mark} {'  '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))}".rstrip()
        for mark, line in zip(marks, lines, strict=True)
    )


def _asked(connection: Connection) -> Row:
    if why_unusable(connection):  # which `attach` explains in full
        return _unknown(connection, "out of reach" if connection.trouble else "another version")
    try:
        mesh = attach(connection.name, listens=False, observes=True)
    except MeshNotReady:
        return _unknown(connection, "waits for its hosts")
    try:
        status = mesh.status()
        owner = mesh.journal.entry(1).who
    finally:
        with suppress(Exception):
            session_of(mesh).close()
    sizes = ", ".join(f"{label}={size}" for label, size in status.sizes)
    age = duration(max(0.0, round(time.time() - status.started)))
    return Row(
        connection.name,
        connection.pid,
        f"{len(status.ranks)} ({sizes})",
        _state(status),
        age,
        owner,
        len(status.clients),
    )


def _state(status: MeshStatus) -> str:
    if status.is_healing:
        return "is being healed"
    by_state = status.ranks_by_state()
    wrong = [f"{state} {by_state[state]}" for state in (*TROUBLED, RankState.DEBUGGING) if state in by_state]
    return ", ".join(wrong) or status.health


def _unknown(connection: Connection, why: str) -> Row:
    return Row(connection.name, connection.pid, "?", why, "?", "?", None)
