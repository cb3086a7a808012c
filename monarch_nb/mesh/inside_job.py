"""`python -m monarch_nb.mesh.inside_job`: the program of a job inside which a mesh has its controller.

It reads the record of the request from standard input, starts the mesh on the nodes of its job, or on hosts
that it asks the engine for, or a controller alone, for which others ask for hosts. It writes an invitation
for the user who has submitted it, and ends with the mesh.
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
from monarch_nb._client.claims import claimed
from monarch_nb._client.session import Session
from monarch_nb._protocol.roles import Role, Share
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshError
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import kubernetes, own_allocation, ray
from monarch_nb.job.engines.base import Inside
from monarch_nb.job.engines.kubernetes import Kubernetes
from monarch_nb.job.engines.ray import Ray
from monarch_nb.job.engines.slurm import Slurm
from monarch_nb.job.joining import adopt
from monarch_nb.job.profiles import Profile
from monarch_nb.mesh import on_engine

_WAIT_S = 3600.0
_INSIDE = {Slurm.name: own_allocation.inside, Ray.name: ray.inside, Kubernetes.name: kubernetes.inside}


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
        session = _started(asked, within)
        try:
            _invite(session, within)
            connection = session.connection
            assert connection is not None
            session.close()
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


def _started(asked: Allocation, within: Inside) -> Session:
    """Start the mesh, with its ranks if its hosts are requested here; return the session with it."""
    if within.asks:
        profile = Profile(within.spec.engine, within.spec)
        mesh = on_engine.start_on(asked.mesh, profile, asked.plan, with_program=within.with_program)
        return session_of(mesh)
    session = claimed(asked.mesh, has_ranks=False)
    adopt(session, asked, os.getpid() if within.with_program else None)
    return session


def _invite(session: Session, within: Inside) -> None:
    """Write an invitation for one's own programs; a reader finds all of it, or nothing."""
    made = session.request(Share(Role.OWNER, network=within.spec.network, own=True, stays=True))
    path = within.invitation
    part = f"{path}.part"
    _remove(part)
    membership.write(part, made.invitation)
    os.replace(part, path)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main())
