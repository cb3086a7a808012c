"""Meshes on hosts of an engine: requests hosts, waits for them, starts ranks on them, and keeps a record of
them.

The controller is on this machine, and hosts dial it. It has the mesh's name from the moment hosts are asked
for, so a request that waits in a queue outlives the program that has made it: whoever types `%mesh start
NAME` next waits on. What was asked for is on record (`job.allocation`) before the engine hears of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from monarch_nb._client import launch
from monarch_nb._client.claims import abandon, claimed
from monarch_nb._client.session import Session
from monarch_nb._protocol.invitations import Withdraw
from monarch_nb._protocol.names import GetMesh, SetName
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import OnFailure
from monarch_nb._shape import Extent, Shape, format_ranks
from monarch_nb._units import duration
from monarch_nb._wire.process import is_running
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.exceptions import MeshError, MeshNotFound, MeshStartError, MeshUsageError, NameTaken
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation, Plan
from monarch_nb.job.cost import cost_of, counted
from monarch_nb.job.engines import Engine, EngineError, Look, State, engine_of, ignored
from monarch_nb.job.joining import Wait, adopt, reserve
from monarch_nb.job.profiles import Profile
from monarch_nb.job.recall import drop, end_all, found_again, is_being_requested, noted
from monarch_nb.job.spec import INSIDE
from monarch_nb.mesh import starting
from monarch_nb.mesh.allocation_status import UNKNOWN, follow, look_at, tell_limit, tell_mesh
from monarch_nb.mesh.always import define_on
from monarch_nb.mesh.core import Mesh
from monarch_nb.status.text import cost_text

_LOOK_S = 0.05
SPAWN_S = 120.0
"""Limit for ranks to start on hosts that have joined."""


class MeshQueued(MeshError):
    """The error of hosts that were requested and aren't available yet: the request stays in the engine's
    queue. The text says how to come back, and how to give up.
    """


def start_on(
    name: str,
    profile: Profile,
    plan: Plan,
    *,
    with_program: bool | None = None,
    wait_s: float | None = None,
    keeps_queued: bool = True,
    on_wait: Callable[[str], None] = lambda _text: None,
) -> Mesh:
    """Start a mesh on hosts of an engine, and wait until its ranks are up.

    Args:
        name: its name, unique among this user's meshes.
        profile: which hosts.
        plan: what is started on them.
        with_program: whether it ends with this program.
        wait_s: how long hosts are waited for; by default for ever.
        keeps_queued: whether the request stays in the queue when the wait is over.
        on_wait: told in a line how the request is, again and again.

    Raises:
        MeshUsageError: if the engine can't be used here, or can't give what was asked for.
        MeshQueued: if the wait was interrupted or over: the request stays in the queue.
        MeshStartError: naming the hosts that haven't come, and why.
        NameTaken: if a mesh of that name runs already.
    """
    engine = usable_engine(profile)
    profile = replace(profile, spec=engine.completed(profile.spec))
    check_ended(name)
    starting.check_free(name)
    session = claimed(name, has_ranks=False)
    asked = Allocation.new(name, profile.name, profile.spec, plan)
    try:
        asked = _ask(session, engine, asked, with_program)
    except BaseException as error:
        drop(asked, error)
        abandon(session)
        raise
    return finish(session, engine, asked, wait_s, on_wait, keeps_queued=keeps_queued)


def wait_on(
    name: str,
    *,
    wait_s: float | None = None,
    keeps_queued: bool = True,
    on_wait: Callable[[str], None] = lambda _text: None,
) -> Mesh:
    """Continue to wait for the hosts of a mesh that any program has requested before.

    Raises:
        MeshNotFound: if nothing of that name waits.
    """
    asked = noted(name)
    if asked is None or asked.is_up:
        raise MeshNotFound(
            f"no request for hosts of a mesh {name!r} is waiting; see all requests: %mesh queue"
        )
    session, engine = Session.connect(launch.find_connection(name), ""), engine_of(asked.spec)
    return finish(session, engine, asked, wait_s, on_wait, keeps_queued=keeps_queued)


def waits(name: str) -> bool:
    """Say whether a mesh of that name waits for its hosts: its controller runs, its ranks don't."""
    asked = records.read_record(name)
    if asked is None or asked.is_up or (asked.spec.controller == INSIDE and not asked.controller_id):
        return False
    return any(c.name == name for c in launch.list_connections())


def usable_engine(profile: Profile) -> Engine:
    """Return the engine of a profile, if it can give what the profile says.

    Raises:
        MeshUsageError: saying why it can't, and what to type.
    """
    engine = engine_of(profile.spec)
    if unheeded := ignored(profile.spec):
        raise MeshUsageError(f"start --on {profile.name}: {unheeded}")
    usable = engine.usable(profile.spec)
    if not usable:
        raise MeshUsageError(f"start --on {profile.name}: {usable.why_not}")
    problems = engine.check(profile.spec)
    if problems:
        raise MeshUsageError(f"start --on {profile.name}: {'; '.join(problems)}")
    return engine


def check_ended(name: str) -> None:
    """Raise if an earlier mesh of that name still exists; release hosts of one whose controller is gone."""
    left = records.read_record(name)
    if left is not None and launch.find_claim(name) is None:
        if left.spec.controller == INSIDE and engine_of(left.spec).look(left.bearer).state != State.ENDED:
            raise NameTaken(
                f"mesh {name!r} runs inside {left.described()}. Use it: %mesh start {name}; end it: %mesh "
                f"cancel {name}; or choose another name"
            )
        end_all(left)
        records.remove_record(name)


def _ask(session: Session, engine: Engine, asked: Allocation, with_program: bool | None) -> Allocation:
    """Reserve places in the mesh, publish the mesh's name, and submit the request to the engine."""
    asked, invitation = reserve(session, engine, asked)
    adopt(session, asked, os.getpid() if starting.ends_with_program(with_program) else None)
    records.write_record(asked)  # first: if this process ends now, the record shows the request
    asked = engine.submit(asked, invitation)
    records.write_record(asked)
    return asked


def _with_hosts(session: Session, engine: Engine, asked: Allocation) -> Allocation:
    """Request the hosts of a mesh whose controller runs alone, unless that was done; if several programs wait
    for the mesh, one of these does.
    """
    me = f"{os.getpid()} {time.time_ns()}"
    first = session.request(SetName("requester", me, only_if_new=True))
    while first != me:
        found = records.read_record(asked.mesh)
        if found is None:
            raise MeshStartError(f"the request for mesh {asked.mesh!r} was cancelled meanwhile")
        if found.id:
            return found
        if not is_running(int(first.split()[0]), None):
            asked, first = found, session.request(SetName("requester", me))
        time.sleep(_LOOK_S)
    if asked.id:
        return asked
    if asked.hosts:  # that program has ended before it could note what it had requested
        session.request(Withdraw(asked.plan.guest))
        engine.end_allocation(asked)
        asked = replace(asked, submitted_at=time.time(), submitted_by=os.getpid())
    asked, invitation = reserve(session, engine, asked)
    records.write_record(asked)
    asked = engine.submit(asked, invitation)
    records.write_record(asked)
    return asked


# --- waiting


def finish(
    session: Session,
    engine: Engine,
    asked: Allocation,
    wait_s: float | None,
    on_wait: Callable[[str], None],
    *,
    keeps_queued: bool,
) -> Mesh:
    """Return a mesh whose ranks are up, when its hosts have joined. Arguments and errors are those of
    `start_on`.
    """
    try:
        if asked.controller_id:
            asked = _with_hosts(session, engine, asked)
        hosts = Wait(session, engine, asked, on_wait).until_joined(wait_s)
        mesh = _spawn_on(session, hosts, asked)
        follow(asked.mesh, session)
        return mesh
    except (KeyboardInterrupt, TimeoutError) as error:
        if keeps_queued and engine.can.queue:
            session.close()
            ending = f"; it's given up by itself after {duration(asked.plan.idle_timeout_s)} without anybody"
            raise queued(asked, error, wait_s, ending) from None
        over = given_up(error, asked, wait_s)
        drop(asked, over)
        abandon(session)
        raise over from None
    except BaseException as error:
        drop(asked, error)
        abandon(session)
        raise


def queued(asked: Allocation, error: BaseException, wait_s: float | None, ending: str = "") -> MeshQueued:
    """Return the error of a wait that has ended before its request: by Ctrl-C, or by its limit."""
    return MeshQueued(
        f"{asked.described()} stays in the queue{_why(error, wait_s)}. Wait on: %mesh start {asked.mesh}; "
        f"give up: %mesh cancel {asked.mesh}{ending}"
    )


def _why(error: BaseException, wait_s: float | None) -> str:
    return f": no hosts within {duration(wait_s)}" if isinstance(error, TimeoutError) and wait_s else ""


def given_up(error: BaseException, asked: Allocation, wait_s: float | None) -> BaseException:
    """Return the error of a wait that has ended, with its request."""
    if isinstance(error, KeyboardInterrupt):
        return error
    return MeshStartError(
        f"{asked.described()}{_why(error, wait_s)}; the request was cancelled. Wait longer: --wait; "
        "or leave the request in the queue: --keep-queued"
    )


# --- ranks


def _spawn_on(session: Session, joined: list[int], asked: Allocation) -> Mesh:
    """Start the ranks of a mesh on hosts that have joined; if several programs have waited for them, one of
    these does.
    """
    me = f"{os.getpid()} {time.time_ns()}"
    if session.request(SetName("spawner", me, only_if_new=True)) != me:
        return _spawned_by_another(session, asked)
    plan = asked.plan
    indices = joined[: max(min(len(joined), asked.spec.wanted.least), len(joined) - plan.num_spares)]
    hosts = HostMesh(indices, Shape.full(Extent(["hosts"], [len(indices)])), session)
    dims = dict(plan.dims) if plan.dims is not None else _default_dims(session, indices)
    procs = hosts.spawn_procs(dims, name=asked.mesh, env=dict(plan.env), method=plan.method)
    procs.initialized.get(SPAWN_S)
    mesh = starting.made(asked.mesh, session, starting.enter(session, procs, dict(plan.env)))
    if plan.on_failure and plan.on_failure != OnFailure.STOP:
        mesh.on_failure(plan.on_failure, max_restarts=plan.max_restarts)
    records.write_record(replace(asked, is_up=True))
    tell_limit(session, asked)
    define_on(mesh)
    return mesh


def _spawned_by_another(session: Session, asked: Allocation) -> Mesh:
    deadline = time.monotonic() + SPAWN_S
    while (record := session.request(GetMesh())) is None:
        if time.monotonic() > deadline:
            raise MeshStartError(
                f"another program has begun to start the ranks of mesh {asked.mesh!r}, and hasn't "
                f"within {SPAWN_S:g} s: %mesh cancel {asked.mesh}"
            )
        time.sleep(0.05)
    return starting.made(asked.mesh, session, record)


def _default_dims(session: Session, indices: list[int]) -> Mapping[str, int]:
    """Return the default dimensions: one rank per GPU that hosts were given, or per core without GPUs; as
    many as the smallest host has.
    """
    rows = [row for row in session.request(Status()).hosts if row.index in indices]
    gpus = min(row.num_gpus for row in rows)
    return {"gpus": gpus} if gpus else {"procs": min(row.num_cores for row in rows)}


# --- releasing hosts


def cancel(name: str, *, forgets: bool = False) -> Allocation:
    """Release all hosts of a mesh, whether it waits for them or runs; return what was released.

    Args:
        forgets: whether the request is forgotten even if the engine can't be reached.

    Raises:
        MeshNotFound: if nothing was asked for under that name.
        EngineError: if the engine can't be reached: then it stays on record.
    """
    asked = records.read_record(name)
    if asked is None:
        known = ", ".join(a.mesh for a in records.list_records()) or "none"
        raise MeshNotFound(
            f"no hosts of an engine were requested for a mesh {name!r}; meshes that have some: "
            f"{known}. End another mesh: %mesh stop {name}"
        )
    with suppress(MeshNotFound):
        session = Session.connect(launch.find_connection(name), "", observes=True)
        abandon(session)
    try:
        end_all(asked)
    except EngineError as error:
        if not forgets:
            raise EngineError(
                f"{error}\nIt stays on record. If the engine is gone for good: %mesh cancel {name} --forget"
            ) from None
    records.remove_record(name)
    return asked


def extend(name: str, seconds: float) -> list[str]:
    """Request more time for a mesh's hosts from the engine; return the new state, in lines.

    Raises:
        MeshUsageError: if the mesh isn't on hosts of an engine: then there's no end to put off.
        EngineError: if the engine gives no more time, with what it says.
    """
    asked = records.read_record(name)
    if asked is None:
        raise MeshUsageError(f"mesh {name!r} doesn't run on hosts of an engine, so its time isn't limited")
    for each in asked.requests:
        engine_of(asked.spec).extend(each, seconds)
    tell_mesh(asked)
    return allocation_lines(name)


def give_back(name: str) -> None:
    """Release the hosts of a mesh that has ended, if an engine provided them."""
    if records.read_record(name) is not None:
        cancel(name)


# --- listing


def looks(*, keeps_ended: bool = False) -> list[tuple[Allocation, Look]]:
    """Return this user's requests to engines, with their state.

    Args:
        keeps_ended: whether an ended request stays on record after it was returned once.
    """
    found = []
    for noted_before in records.list_records():
        asked = _recalled(noted_before)
        is_alone = launch.find_claim(asked.mesh) is None
        rows = [(each, look_at(each)) for each in asked.requests]
        for each, look in rows:
            if is_alone and not look.reason.startswith(UNKNOWN):
                look = _without_a_mesh(asked, look)
            found.append((each, look))
        has_ended = all(look.state == State.ENDED for _, look in rows)
        if is_alone and has_ended and not keeps_ended and look_at(asked.bearer).state == State.ENDED:
            records.remove_if_same(asked)
    return found


def _recalled(asked: Allocation) -> Allocation:
    """Return a request as `found_again` does, unless the engine can't say."""
    if is_being_requested(asked):
        return asked
    with suppress(MeshError):
        return found_again(asked)
    return asked


def _without_a_mesh(asked: Allocation, look: Look) -> Look:
    """Return what is said of a request whose mesh isn't known here."""
    if asked.spec.controller == INSIDE:
        is_there = look.state == State.GRANTED
        return replace(look, reason=f"not connected here: %mesh start {asked.mesh}") if is_there else look
    if look.state not in (State.GRANTED, State.QUEUED) or is_being_requested(asked):
        return look
    return replace(look, reason=f"its mesh is gone: %mesh cancel {asked.mesh} gives it back")


NO_RANKS = "none"


@dataclass(frozen=True)
class HostRow:
    """One row of a list of hosts."""

    index: int
    name: str
    state: str
    num_cores: int
    num_gpus: int
    ranks: str

    def cells(self) -> tuple[str, ...]:
        """Return the row's columns."""
        return str(self.index), self.name, self.state, str(self.num_cores), str(self.num_gpus), self.ranks


def host_rows(mesh: Mesh) -> list[HostRow]:
    """Return a row for each host of a mesh."""
    status = mesh.status()
    on = {h.index: [r.rank for r in status.ranks if r.host == h.index] for h in status.hosts}
    return [
        HostRow(
            h.index,
            h.hostname,
            str(h.state),
            h.num_cores,
            h.num_gpus,
            format_ranks(on[h.index]) if on[h.index] else NO_RANKS,
        )
        for h in status.hosts
    ]


def allocation_lines(name: str) -> list[str]:
    """Return the engine's state of a mesh's hosts, and their cost, if it's known; nothing for a mesh on this
    machine.
    """
    asked = records.read_record(name)
    return [] if asked is None else [_allocation_line(each) for each in asked.requests]


def _allocation_line(asked: Allocation) -> str:
    look, now = engine_of(asked.spec).look(asked), time.time()
    left = f", {duration(round(look.ends_at - now))} left" if look.ends_at and look.ends_at > now else ""
    return f"{asked.described()}: {look.state}{left}{cost_text(cost_of([counted(asked, look, now)]), now)}"
