"""Adds hosts or ranks to a running mesh, or removes some; hosts that are no longer needed are returned to
their engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from monarch_nb._client.heal_report import HealReport
from monarch_nb._client.session import Session
from monarch_nb._protocol.invitations import Withdraw
from monarch_nb._protocol.ranks import StopHosts
from monarch_nb._protocol.states import HostState
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.cost import given_back, with_earlier
from monarch_nb.job.engines import Engine, EngineError, State, engine_of
from monarch_nb.job.joining import Wait, reserve
from monarch_nb.job.recall import end_all
from monarch_nb.job.spec import HostRange
from monarch_nb.mesh import on_engine
from monarch_nb.mesh.allocation_status import tell_limit
from monarch_nb.mesh.core import Mesh

HOSTS = "hosts"


# --- growing


def grow(
    mesh: Mesh,
    num: int = 1,
    *,
    dim: str = "",
    machines: Sequence[str] = (),
    as_spares: bool = False,
    wait_s: float | None = None,
    on_wait: Callable[[str], None] = lambda _text: None,
) -> HealReport:
    """Add `num` to a dimension of a running mesh. Hosts come from the mesh's source of hosts: they are
    requested from its engine, and waited for. Existing ranks keep their state.

    Args:
        num: how many more.
        dim: of which dimension; by default `hosts`, or the first one of a mesh without hosts.
        machines: which hosts, for an engine that knows them by name.
        as_spares: hosts get no ranks, and wait to take the place of one that is lost.
        wait_s: how long hosts are waited for; by default for ever. Then the request is cancelled.
        on_wait: told in a line how the request is, again and again.

    Raises:
        MeshUsageError: for an unknown dimension; if no engine has given the mesh its hosts.
        EngineError: if the engine has no more.
        MeshStartError: naming the hosts that haven't come, and why.
        TimeoutError: after `wait_s`.
        HealError: if ranks can't be started: while a cell runs, say.

    Example:
        >>> grow(mesh, 2).messages                       # doctest: +SKIP
        ('on hosts n3, n4', 'the mesh is now {hosts: 4, gpus: 8}')
    """
    dim = _dimension(mesh, dim)
    asked = records.read_record(mesh.name) if dim == HOSTS else None
    if asked is None:
        _refuse_hosts(mesh, machines, as_spares=as_spares)
        return mesh.resize(force=False, **{dim: mesh.sizes[dim] + num})
    part, joined = _more_hosts(mesh, asked, num, machines, wait_s, on_wait)
    if as_spares:
        _edit(
            mesh.name, lambda a: replace(a, plan=replace(a.plan, num_spares=a.plan.num_spares + len(joined)))
        )
        return HealReport(messages=(_spares_text(len(joined)),))
    try:
        return mesh.take_hosts(joined)
    except BaseException:
        _give_back(session_of(mesh), mesh.name, part)
        raise


def _spares_text(num: int) -> str:
    return "1 more host waits as a spare" if num == 1 else f"{num} more hosts wait as spares"


def _dimension(mesh: Mesh, dim: str) -> str:
    dim = dim or (HOSTS if HOSTS in mesh.sizes else next(iter(mesh.sizes)))
    if dim not in mesh.sizes:
        raise MeshUsageError(
            f"mesh {mesh.name!r} has no dimension {dim!r}; expected {' or '.join(mesh.sizes)}"
        )
    return dim


def _refuse_hosts(mesh: Mesh, machines: Sequence[str], *, as_spares: bool) -> None:
    if machines or as_spares:
        raise MeshUsageError(
            f"mesh {mesh.name!r} wasn't started on an engine that could provide "
            f"{'spares' if as_spares else machines[0]}; start one that was: %mesh start NAME --on PROFILE"
        )


def _more_hosts(
    mesh: Mesh,
    asked: Allocation,
    num: int,
    machines: Sequence[str],
    wait_s: float | None,
    on_wait: Callable[[str], None],
) -> tuple[Allocation, list[int]]:
    """Request more hosts from a mesh's engine, and wait until they have joined; return the request, and their
    indices. On any error, all of it is released.
    """
    session, engine = session_of(mesh), engine_of(asked.spec)
    part = _request_for(engine, asked, num, machines)
    part, invitation = reserve(session, engine, part)
    _put(mesh.name, part)  # first: if this process ends now, the record shows the request
    try:
        part = engine.submit(part, invitation)
        _put(mesh.name, part)
        joined = Wait(session, engine, part, on_wait).until_joined(wait_s)
        tell_limit(session, records.read_record(mesh.name) or part)
        return part, joined
    except BaseException:
        _give_back(session, mesh.name, part)
        raise


def _request_for(engine: Engine, asked: Allocation, num: int, machines: Sequence[str]) -> Allocation:
    if machines and not engine.names_hosts(asked.spec):
        raise MeshUsageError(
            f"engine {engine.name} chooses hosts by itself: give a number, as in %mesh grow {len(machines)}"
        )
    if machines:
        spec = replace(asked.spec, machines=tuple(machines), hosts=HostRange(len(machines), len(machines)))
    else:
        spec = engine.further(asked.requests, num)
    problems = engine.check(spec)
    if problems:
        raise EngineError("; ".join(problems))
    return Allocation.new(asked.mesh, asked.profile, spec, replace(asked.plan, num_spares=0))


# --- shrinking


def shrink(mesh: Mesh, num: int = 0, *, dim: str = "", hosts: Sequence[str] = ()) -> HealReport:
    """Reduce a dimension of a mesh. Hosts without ranks return to their engine; remaining ranks keep their
    state.

    Args:
        num: by how many; 0: leave out what is lost, of the dimension that costs the fewest living ranks.
        dim: of which dimension, the last ones; by default `hosts`, or the first one of a mesh without hosts.
        hosts: which hosts leave, by index or name, as `%mesh hosts` lists them.

    Raises:
        MeshUsageError: for an unknown dimension or host, and if nothing would be left.
        EngineError: if the engine can't be reached.
        HealError: while a cell runs.
    """
    if hosts:
        report = mesh.leave_hosts(_indices(mesh, hosts))
    elif num:
        dim = _left_out(mesh, num, dim)
        report = mesh.resize(force=False, **{dim: mesh.sizes[dim] - num})
    else:
        report = mesh.shrink()
    return replace(report, messages=(*report.messages, *give_back_idle(mesh)))


def check_shrink(mesh: Mesh, num: int = 0, *, dim: str = "", hosts: Sequence[str] = ()) -> None:
    """Check the arguments of `shrink`, before the user is asked to confirm.

    Raises:
        MeshUsageError: for an unknown dimension or host, and if nothing would be left.
    """
    if hosts:
        _indices(mesh, hosts)
    elif num:
        _left_out(mesh, num, dim)


def _left_out(mesh: Mesh, num: int, dim: str) -> str:
    dim = _dimension(mesh, dim)
    if num >= mesh.sizes[dim]:
        raise MeshUsageError(
            f"mesh {mesh.name!r} has {dim}={mesh.sizes[dim]}: {num} fewer would leave nothing. End it: "
            f"%mesh stop {mesh.name}"
        )
    return dim


def _indices(mesh: Mesh, hosts: Sequence[str]) -> list[int]:
    rows = {str(r.index): r.index for r in on_engine.host_rows(mesh) if r.ranks != on_engine.NO_RANKS}
    rows |= {r.name: r.index for r in on_engine.host_rows(mesh) if r.ranks != on_engine.NO_RANKS}
    strange = [h for h in hosts if h not in rows]
    if strange:
        raise MeshUsageError(
            f"mesh {mesh.name!r} has no ranks on a host {strange[0]!r}; expected one of {', '.join(rows)}"
        )
    return list(dict.fromkeys(rows[h] for h in hosts))


def give_back_idle(mesh: Mesh) -> list[str]:
    """Release hosts of an engine that have no ranks, except spares; return messages about it."""
    asked = records.read_record(mesh.name)
    if asked is None:
        return []
    ours = {i for each in asked.requests for i in each.hosts}
    idle = [
        row
        for row in on_engine.host_rows(mesh)
        if row.index in ours and row.state == HostState.UP and row.ranks == on_engine.NO_RANKS
    ]
    idle = idle[asked.plan.num_spares :]
    if not idle:
        return []
    session_of(mesh).request(StopHosts([row.index for row in idle]))
    messages = [f"host{'s' * (len(idle) > 1)} {', '.join(row.name for row in idle)} left the mesh"]
    _edit(mesh.name, lambda found: _without(mesh, found, idle, messages))
    tell_limit(session_of(mesh), records.read_record(mesh.name) or asked)
    return messages


def _without(
    mesh: Mesh, asked: Allocation, left: Sequence[on_engine.HostRow], messages: list[str]
) -> Allocation:
    """Return a mesh's requests without hosts that have left; a request without hosts is ended."""
    engine = engine_of(asked.spec)
    up = {row.index for row in on_engine.host_rows(mesh) if row.state == HostState.UP}
    kept: list[Allocation] = []
    for each in asked.requests:
        if up & set(each.hosts):
            kept.append(
                _smaller(engine, each, [row.name for row in left if row.index in each.hosts], messages)
            )
        else:
            engine.end_allocation(each)
            messages.append(f"{each.described()} was given back")
    return _of_requests(asked, kept)


def _smaller(engine: Engine, asked: Allocation, names: Sequence[str], messages: list[str]) -> Allocation:
    """Return a request without hosts that have left; if the engine keeps them, a message says so."""
    try:
        return engine.release(asked, names) if names else asked
    except EngineError as error:
        messages.append(str(error))
        return asked


# --- replacing lost hosts


def heal(
    mesh: Mesh, *, replay: bool = False, on_wait: Callable[[str], None] = lambda _text: None
) -> HealReport:
    """Repair the losses of a mesh, as `Mesh.heal` does; if hosts of an engine are lost, and too few spares
    wait, others are requested first.

    Raises:
        EngineError: if the engine has no more.
        MeshStartError: naming the hosts that haven't come, and why.
        HealError: if something could not be put back.
    """
    asked = records.read_record(mesh.name)
    if asked is not None:
        _replace_lost(mesh, asked, on_wait)
    return mesh.heal(replay=replay)


def _replace_lost(mesh: Mesh, asked: Allocation, on_wait: Callable[[str], None]) -> None:
    rows = on_engine.host_rows(mesh)
    lost = [r for r in rows if r.index and r.ranks != on_engine.NO_RANKS and r.state != HostState.UP]
    spares = [r for r in rows if r.index and r.ranks == on_engine.NO_RANKS and r.state == HostState.UP]
    num = len(lost) - len(spares)
    if num > 0:
        gone = [r.name for r in rows if r.index and r.state != HostState.UP]
        _edit(mesh.name, lambda found: _without_lost(found, gone))
        _more_hosts(mesh, records.read_record(mesh.name) or asked, num, (), None, on_wait)
        _edit(mesh.name, lambda found: _of_requests(found, [r for r in found.requests if r.id or r.parts]))


def _without_lost(asked: Allocation, names: Sequence[str]) -> Allocation:
    """Return a mesh's requests when some have ended, and others have lost hosts."""
    engine = engine_of(asked.spec)
    left = [r for r in asked.requests if engine.look(r).state not in (State.ENDED, State.LEAVING)]
    asked = given_back(asked, time.time()) if not left else asked
    kept = [replace(r, parts=tuple(p for p in r.parts if p.split()[0] not in names)) for r in left]
    return _of_requests(asked, kept or [replace(asked, id="", parts=(), added=())])


def _of_requests(asked: Allocation, requests: Sequence[Allocation]) -> Allocation:
    """Return a mesh's record with other requests."""
    first, *others = requests or asked.requests
    kept = {each.hosts for each in (first, *others)}
    now = time.time()
    first = with_earlier(first, [each for each in asked.requests if each.hosts not in kept], now)
    return replace(
        first, plan=asked.plan, is_up=asked.is_up, controller_id=asked.controller_id, added=tuple(others)
    )


# --- the record


def _edit(name: str, change: Callable[[Allocation], Allocation]) -> None:
    asked = records.read_record(name)
    if asked is not None:
        changed = change(asked)
        with records.lock_records():  # or who counts the hosts' time would write an older one back
            records.write_record(changed)


def _put(name: str, part: Allocation) -> None:
    """Add a further request to the record of a mesh."""
    _edit(name, lambda a: replace(a, added=(*(p for p in a.added if p.hosts != part.hosts), part)))


def _give_back(session: Session, name: str, part: Allocation) -> None:
    """Release everything of a further request, and remove it from the record."""
    session.request(Withdraw(part.plan.guest))  # otherwise it would wait for hosts that never joined
    session.request(StopHosts(list(part.hosts)))
    end_all(part)
    _edit(name, lambda asked: replace(asked, added=tuple(p for p in asked.added if p.hosts != part.hosts)))
