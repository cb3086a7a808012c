"""Starting a mesh, and finding one that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch_nb._client import launch, spare
from monarch_nb._client.session import RequestFailed, Session
from monarch_nb._shape import Extent, Shape, format_ranks
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.core import Mesh

IDLE_TIMEOUT_S = 8 * 3600.0

_RECORD = "mesh"


def start(
    name: str = "mesh",
    dims: Mapping[str, int] | None = None,
    *,
    num_hosts: int = 0,
    env: Mapping[str, str] | None = None,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    method: str = "fork",
) -> Mesh:
    """Start a mesh that outlives this program, and wait until its ranks are up.

    Args:
        name: its name, unique among this user's meshes.
        dims: dimensions on each host; by default one rank per GPU, or per core where there is none.
        num_hosts: number of host processes on this machine that stand for hosts; 0: the machine itself.
        env: environment variables for the ranks.
        idle_timeout_s: seconds without a client after which it ends.

    Raises:
        MeshUsageError: if a mesh of that name runs already.
    """
    path = launch.connection_path(name)
    if any(c.name == name for c in launch.list_connections()):
        raise MeshUsageError(f"mesh {name!r} runs already. Attach to it: %mesh start {name}, or choose another name")
    launch.refuse_other_version(name)
    session = Session.connect(spare.take())
    try:
        return _start_on(session, name, path, dims, num_hosts, env or {}, idle_timeout_s, method)
    except BaseException:
        _abandon(session)
        raise


def _start_on(
    session: Session,
    name: str,
    path: str,
    dims: Mapping[str, int] | None,
    num_hosts: int,
    env: Mapping[str, str],
    idle_timeout_s: float,
    method: str,
) -> Mesh:
    hosts = _hosts(session, num_hosts)
    if dims is None:
        dims = default_dims(session)
    procs = hosts.spawn_procs(dims, name=name, env=env, method=method)
    procs.initialized.get(120)
    record = {
        "group": procs._group,
        "procs": procs._procs,
        "labels": procs.extent.labels,
        "sizes": procs.extent.sizes,
        "hosts": procs._hosts,
    }
    session.request("set_name", name=_RECORD, value=record)
    session.request(
        "adopt", name=name, idle_timeout_s=idle_timeout_s, connection_file=path, env=dict(env), dims=dict(procs.sizes),
        rank_set=format_ranks(range(len(procs))), journal=launch.new_journal(name),
    )  # fmt: skip
    return _made(name, session, record)


def _hosts(session: Session, num_hosts: int) -> HostMesh:
    if not num_hosts:
        return HostMesh((0,), session=session)
    from monarch_nb.job.process import start_hosts

    tickets = start_hosts(session, [f"host{i}" for i in range(num_hosts)])[0]
    shape = Shape.full(Extent(["hosts"], [num_hosts]))
    hosts = HostMesh([t["host"] for t in tickets], shape, session)
    hosts.initialized.get(60)
    return hosts


def default_dims(session: Session) -> dict[str, int]:
    """Return one rank per GPU, or per core where there is none."""
    home = session.request("status")["hosts"][0]
    return {"gpus": home["num_gpus"]} if home["num_gpus"] else {"procs": home["num_cores"]}


def _abandon(session: Session) -> None:
    from contextlib import suppress

    with suppress(RequestFailed, TimeoutError):
        session.request("shut_down")
    session.close()


def attach(name: str | None = None, *, listens: bool = True) -> Mesh:
    """Return a running mesh of this user.

    Args:
        name: its name; may be left out if there's only one.
        listens: whether this program shows what the mesh's actors print.

    Raises:
        MeshNotFound: naming those that run.
    """
    connection = launch.find_connection(name)
    session = Session.connect(connection, listens=listens)
    record = session.request("get_name", name=_RECORD)
    if record is None:
        session.close()
        raise ValueError(f"{connection.name!r} has not finished starting")
    return _made(connection.name, session, record, make_current=listens)


def _made(name: str, session: Session, record: Mapping[str, Any], *, make_current: bool = True) -> Mesh:
    from monarch_nb._client import session as sessions

    mesh = Mesh(name, session, record)
    assert session.output is not None
    session.output.default.sizes[record["group"]] = len(mesh)
    if make_current:
        sessions.use(session)
    return mesh
