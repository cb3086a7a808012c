"""Killing ranks, for tests."""

from __future__ import annotations

import os
import signal

import pytest

from monarch_nb._protocol.programs import Status
from monarch_nb.actor import ProcMesh
from monarch_nb.exceptions import SupervisionError

T = 60


def wait_for_news(mesh: ProcMesh, pid: int) -> None:
    """Return when this program has heard of a rank's end: news come in order, and the controller is asked
    until it knows."""
    while all(row.pid != pid or row.end is None for row in mesh._session.request(Status()).procs):
        pass


def kill(mesh: ProcMesh, *ranks: int) -> list[int]:
    """Kill ranks and return once this program has heard of it; return their pids."""
    pids = list(mesh.execute(os.getpid).get(T).values())
    waiting = [mesh.flatten("rank").slice(rank=r).execute(signal.pause) for r in ranks]
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)
    for each in waiting:
        with pytest.raises(SupervisionError, match="killed by"):
            each.get(T)
    return [pids[r] for r in ranks]
