"""The file by which a program finds the hosts of a job that another program has obtained: the description of
the job, and the name of its mesh, which outlives both programs.

The file may lie anywhere, also where others write: it names a mesh of this user, and nothing else of it is
believed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from contextlib import suppress

from monarch_nb._client import launch
from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Stop
from monarch_nb._protocol.states import ProcState
from monarch_nb._wire.process import is_running
from monarch_nb.exceptions import MeshError, MeshNotFound, MeshUsageError
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.description import MAX_BYTES
from monarch_nb.job.engines import State, engine_of
from monarch_nb.job.recall import end_all, noted

_NAME = re.compile(r"job-[0-9a-f]{12}")
STOP_S = 3.0
LOOK_S = 0.05
NOTICED_S = 3.0
"""How long a program that doesn't run here may count as one that has just ended, which its mesh hasn't
noticed yet. After that it's one on another machine.
"""


def new_name() -> str:
    """Return a name for the mesh of a job that others are to find."""
    return f"job-{secrets.token_hex(6)}"


def write(path: str, described: bytes, mesh: str) -> None:
    """Write the file; a reader finds all of it, or nothing."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w") as file:
        json.dump({**json.loads(described), "mesh": mesh}, file, indent=1)
    os.replace(part, path)


def running(path: str) -> tuple[Allocation, Session] | None:
    """Return what was asked for by the job of a file, and a session with its mesh; None if it has ended: then
    nothing of it is left.

    Raises:
        MeshUsageError: if the file is none of a job.
        EngineError: if the engine can't say how it is.
    """
    mesh = _mesh_of(path)
    asked = noted(mesh) if mesh else None
    if asked is None:
        return None
    with suppress(MeshNotFound):
        connection = launch.find_connection(mesh)
        if engine_of(asked.spec).look(asked).state != State.ENDED:
            return asked, Session.connect(connection, "")
    end_all(asked)
    records.remove_record(mesh)
    return None


def stop_left(session: Session) -> None:
    """Stop ranks that programs have left in a job's mesh, if no other program uses it any more."""
    deadline = time.monotonic() + NOTICED_S
    while True:
        found = session.request(Status())
        others = [program.pid for program in found.clients if program.pid != os.getpid()]
        if not others:
            break
        if any(is_running(pid, None) for pid in others) or time.monotonic() > deadline:
            return
        time.sleep(LOOK_S)
    left = [row.proc for row in found.procs if row.state in (ProcState.STARTING, ProcState.RUNNING)]
    if left:
        session.request(Stop(left, STOP_S))


def remove(path: str, mesh: str) -> None:
    """Remove the file, if it's still that of this mesh."""
    with suppress(MeshError, FileNotFoundError):
        if _mesh_of(path) == mesh:
            os.unlink(path)


def _mesh_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(MAX_BYTES))
        mesh = found.get("mesh", "")  # what `dump` has written names none
        if mesh and not _NAME.fullmatch(mesh):
            raise ValueError("it names no mesh of a job")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MeshUsageError(
            f"cached_path {path} is no file of a job ({type(error).__name__}: {error}): remove it, or give "
            "another cached_path"
        ) from None
    return str(mesh)
