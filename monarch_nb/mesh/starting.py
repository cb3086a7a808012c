"""Starts a mesh, or attaches to a running one."""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from monarch_nb import _reload
from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb._client.claims import abandon, claimed
from monarch_nb._client.mesh_name import check_mesh_name
from monarch_nb._client.session import Session
from monarch_nb._client.unattended import is_run_by_a_program
from monarch_nb._host import capacity
from monarch_nb._protocol.names import GetMesh, GroupRecord, SetMesh
from monarch_nb._protocol.programs import Adopt, Status
from monarch_nb._protocol.states import ClaimState, OnFailure
from monarch_nb._rank.imports import patch_imports
from monarch_nb._runtime.supervision import MeshFailure
from monarch_nb._shape import Extent, Shape, format_ranks
from monarch_nb._wire.control_group import LimitError, check_limits
from monarch_nb._wire.limits import VARIABLE, parse_limits
from monarch_nb.actor.handle import placement_of
from monarch_nb.actor.host_mesh import HostMesh, check_env
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import MeshEnded, MeshNotFound, MeshNotReady, MeshUsageError, NameTaken
from monarch_nb.mesh import drift
from monarch_nb.mesh.always import define_on
from monarch_nb.mesh.core import Mesh
from monarch_nb.mesh.life import check_lease
from monarch_nb.mesh.running import Asked, refuse_other, take_on

IDLE_TIMEOUT_S = 8 * 3600.0


def start(
    name: str = "mesh",
    dims: Mapping[str, int] | None = None,
    *,
    num_hosts: int = 0,
    env: Mapping[str, str] | None = None,
    idle_timeout_s: float | None = None,
    method: str = "fork",
    on_failure: str | Callable[[MeshFailure], Any] | None = None,
    max_restarts: int = 5,
    num_spares: int = 0,
    force: bool = False,
    with_program: bool | None = None,
    attach: bool = False,
) -> Mesh:
    """Start a mesh that outlives this program, and wait until its ranks are up.

    Args:
        name: its name, unique among this user's meshes.
        dims: dimensions on each host; by default one rank per GPU, or per core where there is none.
        num_hosts: number of host processes on this machine that stand for hosts; 0: the machine itself.
        env: environment variables for the ranks.
        idle_timeout_s: seconds without a client after which it ends; by default 8 hours.
        on_failure: what is done when a rank dies; see `ProcMesh.on_failure`. By default "stop".
        max_restarts: how often it's healed by itself within ten minutes.
        num_spares: further host processes that wait to take a lost host's place.
        force: start more ranks than the machine seems to have room for.
        with_program: whether it ends with this program (in a notebook: with the kernel); by default only in a
            notebook that nbclient, papermill or nbconvert runs.
        attach: if a mesh of that name runs already, return that one; if it's being started, wait for it. What
            was asked for is compared with what runs: policy, lease and `with_program` are applied, anything
            else that differs is refused.

    Raises:
        MeshUsageError: if the machine has no room for so many ranks; with `attach`, if the mesh that runs
            isn't what was asked for.
        NameTaken: without `attach`, if a mesh of that name runs already, or is being started by another
            program.
    """
    asked = Asked(
        dims, num_hosts, env, idle_timeout_s, method, on_failure, max_restarts, num_spares, with_program
    )
    check_mesh_name(name)
    _check_asked(asked)
    if not attach:
        return _start(name, asked, force=force)
    before = sessions.in_use()
    mesh, is_new = start_or_attach(name, lambda: _attach(name), lambda: _start(name, asked, force=force))
    if not is_new:
        try:
            refuse_other(mesh, asked)
        except MeshUsageError:
            if before is not None:
                sessions.use(before)
            raise
        take_on(mesh, asked)
    return mesh


def _check_asked(asked: Asked) -> None:
    """Raise if no mesh can be started with these options.

    Raises:
        MeshUsageError: naming it; a ValueError or TypeError for a size that is none.
    """
    if asked.dims is not None:
        if not isinstance(asked.dims, Mapping):
            raise MeshUsageError(f"sizes are given by dimension, as in {{'gpus': 4}}; not {asked.dims!r}")
        Extent.of(asked.dims)
    for what, number in (("num_hosts", asked.num_hosts), ("num_spares", asked.num_spares)):
        if not isinstance(number, int) or number < 0:
            raise MeshUsageError(f"{what} is a whole number, 0 or more; not {number!r}")
    if asked.env is not None:
        check_env(asked.env)
        _check_limits(asked.env.get(VARIABLE, ""))
    if asked.idle_timeout_s is not None:
        check_lease(asked.idle_timeout_s)


def _check_limits(text: str) -> None:
    if not text:
        return
    try:
        check_limits(parse_limits(text))
    except LimitError as error:
        raise MeshUsageError(f"ranks {error}") from None


def start_or_attach(
    name: str,
    attach: Callable[[], Mesh],
    start: Callable[[], Mesh],
    on_wait: Callable[[str], None] = lambda _text: None,
) -> tuple[Mesh, bool]:
    """Start a mesh, unless one of that name runs; return whether it's new. Waits for a mesh that another
    program is starting.

    Args:
        on_wait: told, if there's something to wait for, what that is.
    """
    while True:
        if launch.wait_until_settled(name, on_wait=on_wait):
            with suppress(MeshNotFound, MeshEnded):  # the mesh has just ended: look again
                return attach(), False
        else:
            with suppress(NameTaken):  # another program was faster: look again
                return start(), True


def check_free(name: str) -> None:
    """Raise if a mesh of that name runs; wait for one that is ending.

    Raises:
        NameTaken: saying how to attach to it.
    """
    if launch.wait_until_settled(name, states=(ClaimState.ENDING,)):
        raise NameTaken(
            f"mesh {name!r} runs already. Attach to it: %mesh attach {name}, or choose another name"
        )


def _start(name: str, asked: Asked, *, force: bool) -> Mesh:
    dims, num_hosts, num_spares = asked.dims, asked.num_hosts, asked.num_spares
    _check_room(dims or {}, num_hosts, num_spares, force=force)
    path = launch.connection_path(name)
    check_free(name)
    session = claimed(name)
    idle_timeout_s = IDLE_TIMEOUT_S if asked.idle_timeout_s is None else asked.idle_timeout_s
    try:
        mesh = _start_on(
            session, name, path, dims, (num_hosts, num_spares), asked.env or {}, idle_timeout_s, asked.method,
            force=force, with_program=ends_with_program(asked.with_program),
        )  # fmt: skip
        if asked.on_failure is not None and asked.on_failure != OnFailure.STOP:
            mesh.on_failure(asked.on_failure, max_restarts=asked.max_restarts)
    except BaseException:
        abandon(session)
        raise
    define_on(mesh)
    return mesh


def _check_room(dims: Mapping[str, int], num_hosts: int, num_spares: int, *, force: bool) -> None:
    """Raise if this machine has no room for a mesh, before anything is created; the controller checks
    again.
    """
    num_ranks = math.prod(dims.values()) * max(1, num_hosts)
    try:
        capacity.check_room(num_ranks + num_hosts + num_spares, force=force, how="--force (force=True)")
    except ValueError as error:
        raise MeshUsageError(str(error)) from None


def _start_on(
    session: Session,
    name: str,
    path: str,
    dims: Mapping[str, int] | None,
    num_hosts: tuple[int, int],
    env: Mapping[str, str],
    idle_timeout_s: float,
    method: str,
    *,
    force: bool,
    with_program: bool,
) -> Mesh:
    hosts = _hosts(session, *num_hosts)
    if dims is None:
        dims = default_dims(session)
    procs = hosts.spawn_procs(dims, name=name, env=env, method=method, force=force)
    procs.initialized.get(120)
    record = enter(session, procs, env)
    adopt = Adopt(
        name=name,
        idle_timeout_s=idle_timeout_s,
        connection_file=path,
        env=dict(env),
        dims=dict(procs.sizes),
        rank_set=format_ranks(range(len(procs))),
        journal=launch.new_journal(name),
        owner_pid=os.getpid() if with_program else None,
    )
    session.request(adopt)
    return made(name, session, record)


def enter(session: Session, procs: ProcMesh, env: Mapping[str, str]) -> GroupRecord:
    """Make the ranks findable as the named mesh of their controller; return their description."""
    extent, where = procs.extent, placement_of(procs)
    record = GroupRecord(
        where.group, where.procs, tuple(extent.labels), tuple(extent.sizes), where.hosts, dict(env)
    )
    session.request(SetMesh(record))
    return record


def ends_with_program(asked: bool | None) -> bool:
    """Say whether a mesh that this program starts ends with it by default."""
    return is_run_by_a_program() if asked is None else asked


def _hosts(session: Session, num_hosts: int, num_spares: int) -> HostMesh:
    if num_spares and not num_hosts:
        raise MeshUsageError(
            "spares take the place of lost hosts, and this mesh is on the controller's own: give a "
            "number of hosts, too"
        )
    if not num_hosts:
        return HostMesh((0,), session=session)
    from monarch_nb.job.process import start_hosts

    labels = [f"host{i}" for i in range(num_hosts)] + [f"spare{i}" for i in range(num_spares)]
    tickets = start_hosts(session, labels)[0][:num_hosts]
    shape = Shape.full(Extent(["hosts"], [num_hosts]))
    hosts = HostMesh([t.host for t in tickets], shape, session)
    hosts.initialized.get(60)
    return hosts


def default_dims(session: Session) -> dict[str, int]:
    """Return one rank per GPU, or per core where there is none."""
    controller = session.request(Status()).hosts[0]
    return {"gpus": controller.num_gpus} if controller.num_gpus else {"procs": controller.num_cores}


def attach(name: str | None = None, *, listens: bool = True, observes: bool = False, what: str = "") -> Mesh:
    """Return a running mesh of this user. A program has one connection to a mesh, however often it attaches.

    Args:
        name: its name; may be left out if there's only one.
        what: what people know this program by; the journal has it.
        listens: whether this program shows what the mesh's actors print.
        observes: whether it only looks on, and so doesn't keep the mesh from ending when nobody uses it.

    Raises:
        MeshNotFound: naming those that run.
        MeshUsageError: if that's no name.
    """
    if name is not None:
        check_mesh_name(name)
    connection = launch.find_connection(name)
    known = sessions.open_to(connection) if listens and not observes else None
    session = known or Session.connect(connection, what, listens=listens, observes=observes)
    record = session.request(GetMesh())
    if record is None:
        if known is None:
            session.close()
        raise MeshNotReady(
            f"mesh {connection.name!r} has no ranks yet: it's being started, or waits for its hosts. "
            f"Wait with it: %mesh start {connection.name}; or give up: %mesh cancel {connection.name}"
        )
    return made(connection.name, session, record, make_current=listens)


def current() -> Mesh | None:
    """Return the named mesh that this program has started or attached to last; None if there is none."""
    session = sessions.in_use()
    if session is None or session.connection is None or session.transport.closed:
        return None
    record = session.request(GetMesh())
    return None if record is None else Mesh(session.connection.name, session, record)


_attach = attach  # `start` has a parameter of that name


@functools.cache
def _register_joblib() -> None:
    """Have joblib.parallel_config(backend="monarch_nb") find that, whenever joblib is imported."""
    patch_imports({"joblib": lambda _joblib: importlib.import_module("monarch_nb.mesh.tasks.joblib")})


def made(name: str, session: Session, record: GroupRecord, *, make_current: bool = True) -> Mesh:
    """Return the mesh that a controller describes; this program is connected to it from now on."""
    mesh = Mesh(name, session, record)
    _register_joblib()
    assert session.output is not None and session.connection is not None
    session.connection = session.connection._replace(name=name)  # a spare controller had no name
    if session.transport.mesh is not None:
        session.transport.mesh = session.transport.mesh._replace(name=name)
    session.output.default.sizes[record.group] = len(mesh)
    if session.ending is not None:
        session.ending.name, session.ending.num_ranks = name, len(mesh)
    if make_current:
        _reload.install()  # `sync` has this program, too, load what has changed
        sessions.use(session)
        drift.compare_later(session, record.hosts)
    return mesh
