"""`python -m monarch_nb.mesh.inside_job`: the program of a job inside which a mesh has its controller.

It reads the record of the request from standard input, starts the mesh on the nodes of its job, or on hosts
that it asks the engine for, writes an invitation for the user who has submitted it, and ends with the mesh.
The other side is `monarch_nb.mesh.inside`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile

from monarch_nb._client import membership
from monarch_nb._protocol.roles import Role, Share
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshError
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import own_allocation, ray
from monarch_nb.job.engines.ray import Ray
from monarch_nb.job.engines.slurm import Slurm
from monarch_nb.job.profiles import Profile
from monarch_nb.mesh import on_engine
from monarch_nb.mesh.core import Mesh

_WAIT_S = 3600.0
_INSIDE = {Slurm.name: own_allocation.inside, Ray.name: ray.inside}


def main() -> int:
    """Serve a mesh until it ends; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the job is cancelled: no invitation is left
    here = tempfile.mkdtemp(prefix="monarch_nb-inside-")
    # Files of running meshes may lie in a directory that machines share, where a mesh of that name is
    # already: the connection by which this one is used.
    os.environ["JUPYTER_RUNTIME_DIR"] = here
    records.keep_records_in(here)
    try:
        asked = Allocation.from_json(sys.stdin.read())
        within = _INSIDE[asked.spec.engine](asked)
        profile = Profile(within.spec.engine, within.spec)
        mesh = on_engine.start_on(asked.mesh, profile, asked.plan, with_program=within.with_program)
        try:
            _invite(mesh, within.invitation, asked.spec.network)
            connection = session_of(mesh).connection
            assert connection is not None
            session_of(mesh).close()
            print(f"mesh {asked.mesh!r} runs", flush=True)
            while not wait_until_gone(connection.pid, _WAIT_S):
                pass
        finally:
            _remove(within.invitation)
    except MeshError as error:
        print(f"node {socket.gethostname()}: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        shutil.rmtree(here, ignore_errors=True)
    print(f"mesh {asked.mesh!r} has ended", flush=True)
    return 0


def _invite(mesh: Mesh, path: str, network: str) -> None:
    """Write an invitation for one's own programs; a reader finds all of it, or nothing."""
    made = session_of(mesh).request(Share(Role.OWNER, network=network, own=True, stays=True))
    part = f"{path}.part"
    _remove(part)
    membership.write(part, made.invitation)
    os.replace(part, path)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main())
