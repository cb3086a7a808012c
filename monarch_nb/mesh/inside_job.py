"""`python -m monarch_nb.mesh.inside_job`: the program of a job inside which a mesh has its controller.

It reads the record of the request from standard input, starts the mesh on the nodes of its job, writes an
invitation for the user who has submitted the job, and ends with the mesh. The other side is
`monarch_nb.mesh.inside`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import replace

from monarch_nb._client import membership
from monarch_nb._protocol.roles import Role, Share
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshError, MeshStartError
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines.own_allocation import OwnAllocation, num_nodes
from monarch_nb.job.engines.slurm import invitation_path
from monarch_nb.job.profiles import Profile
from monarch_nb.job.spec import HostRange
from monarch_nb.mesh import on_engine
from monarch_nb.mesh.core import Mesh

_WAIT_S = 3600.0


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
        mesh = _started(asked)
        path = invitation_path(asked.directory, os.environ["SLURM_JOB_ID"])
        try:
            _invite(mesh, path, asked.spec.network)
            connection = session_of(mesh).connection
            assert connection is not None
            session_of(mesh).close()
            print(f"mesh {asked.mesh!r} runs", flush=True)
            while not wait_until_gone(connection.pid, _WAIT_S):
                pass
        finally:
            _remove(path)
    except MeshError as error:
        print(f"node {socket.gethostname()}: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        shutil.rmtree(here, ignore_errors=True)
    print(f"mesh {asked.mesh!r} has ended", flush=True)
    return 0


def _started(asked: Allocation) -> Mesh:
    """Start the mesh on all nodes of this job, but for spares."""
    num = num_nodes() - asked.plan.num_spares
    if num < 1:
        raise MeshStartError(
            f"the job has {num_nodes()} nodes, and {asked.plan.num_spares} of them are to be spares"
        )
    spec = replace(asked.spec, engine=OwnAllocation.name, controller="", login="", own=())
    spec = replace(spec, hosts=HostRange(num, num), machines=())
    return on_engine.start_on(asked.mesh, Profile(OwnAllocation.name, spec), asked.plan, with_program=False)


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
