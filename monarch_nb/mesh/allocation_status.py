"""Tells meshes of engines how their hosts are: when they're taken away, and what they have cost.

Engines change their minds: an administrator gives a job more time or less, nodes are lost. So programs that
use such a mesh, and the server while a page shows it, look again from time to time; whoever looks notes that
in the mesh's record, and the others leave it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace

from monarch_nb._client import launch
from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import SetTimeLimit
from monarch_nb.exceptions import MeshError, MeshNotFound
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.cost import cost_of, counted
from monarch_nb.job.engines import Look, State, engine_of
from monarch_nb.job.recall import is_being_requested, may_exist

LOOK_S = 30.0
"""Minimum time between two looks at the hosts of a mesh, by whichever program."""
UNKNOWN = "unknown: "
"""Begins the reason of a look at an engine that can't be reached."""


def look_at(asked: Allocation) -> Look:
    """Return the state of a request; an unreachable engine must not hide the others."""
    if is_being_requested(asked):
        return Look(State.QUEUED, reason="being requested")
    if may_exist(asked):
        gives_up = f"give it up: %mesh cancel {asked.mesh}"
        return Look(State.QUEUED, f"{UNKNOWN}{asked.spec.engine} doesn't know it so far; {gives_up}")
    try:
        return engine_of(asked.spec).look(asked)
    except MeshError as error:
        return Look(State.QUEUED, reason=f"{UNKNOWN}{error}")


def tell_limit(session: Session, asked: Allocation) -> None:
    """Tell a mesh when its engine takes the first of its hosts away, and what they have cost. While one of
    its engines can't be reached, or when all hosts have been taken away, what the mesh knows stays in force.
    """
    looks = [(look_at(each), each) for each in asked.requests]
    if any(look.reason.startswith(UNKNOWN) for look, _ in looks):
        return
    now = time.time()
    requests = [counted(each, look, now) for look, each in looks]
    _keep_counts(asked.mesh, requests)
    if all(look.state in (State.ENDED, State.LEAVING) for look, _ in looks):
        return  # when their time was up is what explains their end
    ends = [(look.ends_at, each.described()) for look, each in looks if look.ends_at is not None]
    ends_at, job = min(ends) if ends else (None, asked.described())
    session.request(SetTimeLimit(ends_at, job, cost_of(requests)))


def _keep_counts(name: str, requests: list[Allocation]) -> None:
    """Note the time of hosts in a mesh's record, if the mesh runs on them."""
    spent = {(each.id, each.parts, each.hosts): each.spent for each in requests}
    with records.lock_records():
        found = records.read_record(name)
        if found is not None and found.is_up:
            first, *others = (
                replace(each, spent=spent.get((each.id, each.parts, each.hosts), each.spent))
                for each in found.requests
            )
            records.write_record(replace(first, added=tuple(others)))


def look_again(name: str) -> None:
    """Tell a mesh how its hosts are now, unless any program has done so a moment ago."""
    asked = records.read_record(name)
    if asked is not None and asked.is_up and _is_due(asked):
        tell_mesh(asked)


def tell_mesh(asked: Allocation) -> None:
    """Tell a mesh as `tell_limit` does, by a connection of its own; nothing is done if it doesn't run."""
    with suppress(MeshNotFound):
        session = Session.connect(launch.find_connection(asked.mesh), "", observes=True)
        try:
            tell_limit(session, asked)
        finally:
            session.close()


def _is_due(asked: Allocation) -> bool:
    looked_at = max(each.spent.counted_at for each in asked.requests)
    return not 0 <= time.time() - looked_at < LOOK_S


class _Follower:
    """The thread of this program that looks again at the hosts of meshes that the program uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._is_running = False
        self._has_another = threading.Event()

    def follow(self, name: str, session: Session) -> None:
        """Look again at a mesh's hosts for as long as this program is connected to it."""
        with self._lock:
            self._sessions[name] = session
            self._has_another.set()
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="monarch-nb-limits", daemon=True).start()

    def _run(self) -> None:
        while names := self._open():
            for name in names:
                with suppress(MeshError, OSError):  # whatever is wrong with one mesh, the others are told
                    look_again(name)
            self._has_another.wait(LOOK_S)

    def _open(self) -> list[str]:
        """Return the meshes that are used; without any, the thread ends."""
        with self._lock:
            self._sessions = {
                name: s
                for name, s in self._sessions.items()
                if not s.transport.closed and not s.transport.lost and records.read_record(name) is not None
            }
            self._is_running = bool(self._sessions)
            self._has_another.clear()
            return list(self._sessions)


_follower = _Follower()


def follow(name: str, session: Session) -> None:
    """Look again at the hosts of a mesh from time to time, while this program uses it; nothing is done for a
    mesh whose hosts are no engine's.
    """
    if records.read_record(name) is not None:
        _follower.follow(name, session)
