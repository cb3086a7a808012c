"""Meshes whose controller runs where the hosts are: requests them, waits, and connects.

This machine needs nothing but a way to the engine's commands: for a cluster behind a login node, ssh. The
program with the controller takes the job's hosts, or asks the engine for some. Where it may ask for nothing,
as a pod may not, the controller runs alone, and this program requests hosts for it once it's connected. The
mesh outlives it: it ends with its allocation, by `%mesh stop`, or when nobody has used it for its idle
time-out. What runs there is `monarch_nb.mesh.inside_job`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from monarch_nb._client import launch, membership
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.own_mesh import join_by
from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Status
from monarch_nb._wire.invitation import Invitation, InvitationError
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshError, MeshNotFound, MeshStartError, MeshUsageError, NameTaken
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation, Plan
from monarch_nb.job.engines import ENGINES, Engine, State, engine_of
from monarch_nb.job.joining import InsideWait
from monarch_nb.job.profiles import Profile
from monarch_nb.job.recall import drop, end_all, found_again, is_being_requested, noted
from monarch_nb.job.spec import INSIDE
from monarch_nb.mesh import on_engine, starting
from monarch_nb.mesh.allocation_status import look_at
from monarch_nb.mesh.always import define_on
from monarch_nb.mesh.core import Mesh


def start_inside(
    name: str,
    profile: Profile,
    plan: Plan,
    *,
    with_program: bool | None = None,
    wait_s: float | None = None,
    keeps_queued: bool = True,
    on_wait: Callable[[str], None] = lambda _text: None,
) -> Mesh:
    """Start a mesh inside an allocation, and wait until it can be used here. Arguments and errors are those
    of `on_engine.start_on`.

    Raises:
        MeshUsageError: also if the engine can't have a controller inside, or the mesh is to end with this
            program, which may lose its connection to it.
    """
    engine = _usable_engine(profile)
    if with_program:
        raise MeshUsageError(
            f"start: a mesh inside a job of {engine.name} can't end with this kernel, whose connection may "
            "be lost; --idle-timeout says how long it goes on without anybody"
        )
    on_engine.check_ended(name)
    starting.check_free(name)
    asked = Allocation.new(name, profile.name, engine.completed(profile.spec), plan)
    if not records.add_record(asked):  # first: if this process ends now, the record shows the request
        raise NameTaken(f"hosts for a mesh {name!r} are being requested by another program: %mesh queue")
    try:
        asked = engine.submit_inside(asked)
        records.write_record(asked)
    except BaseException as error:
        drop(asked, error)
        raise
    if starting.ends_with_program(with_program):
        atexit.register(_cancel, asked)  # a notebook that a program runs: nobody comes back to the mesh
    return _finish(engine, asked, wait_s, on_wait, keeps_queued=keeps_queued)


def wait_inside(
    name: str,
    *,
    wait_s: float | None = None,
    keeps_queued: bool = True,
    on_wait: Callable[[str], None] = lambda _text: None,
) -> Mesh:
    """Continue to wait for a mesh that was requested before, or connect to it again.

    Raises:
        MeshNotFound: if there is none.
    """
    asked = noted(name) if _record(name) is not None else None
    if asked is None:
        raise MeshNotFound(f"no mesh {name!r} was requested inside a job; see all requests: %mesh queue")
    return _finish(engine_of(asked.spec), asked, wait_s, on_wait, keeps_queued=keeps_queued)


def is_away(name: str) -> bool:
    """Return whether a mesh of that name runs inside an allocation, or waits for it, and isn't connected
    here. The record of one that has ended is removed.
    """
    asked = _record(name)
    if asked is None or launch.find_claim(name) is not None:
        return False
    if not is_being_requested(asked):
        asked = found_again(asked)
    if look_at(asked.bearer).state != State.ENDED:
        return True
    with suppress(MeshError):
        end_all(asked)  # which removes its files
    records.remove_if_same(asked)
    return False


def _record(name: str) -> Allocation | None:
    asked = records.read_record(name)
    return asked if asked is not None and asked.spec.controller == INSIDE else None


def _usable_engine(profile: Profile) -> Engine:
    engine = engine_of(profile.spec)
    if not engine.can.inside:
        able = ", ".join(name for name in ENGINES if engine_of(replace(profile.spec, engine=name)).can.inside)
        raise MeshUsageError(
            f"start --on {profile.name}: engine {engine.name} can't have the controller inside; {able} can. "
            "Leave it on this machine: --controller here"
        )
    return on_engine.usable_engine(profile)


def _finish(
    engine: Engine,
    asked: Allocation,
    wait_s: float | None,
    on_wait: Callable[[str], None],
    *,
    keeps_queued: bool,
) -> Mesh:
    try:
        invitation = InsideWait(engine, asked.bearer, on_wait).until_open(wait_s)
    except (KeyboardInterrupt, TimeoutError) as error:
        if keeps_queued or asked.is_up:  # a mesh that runs isn't ended because it's slow to be reached
            raise on_engine.queued(asked, error, wait_s) from None
        over = on_engine.given_up(error, asked, wait_s)
        drop(asked, over)
        raise over from None
    except InvitationError as error:
        raise MeshStartError(f"{asked.described()} has written an invitation that is none: {error}") from None
    except MeshStartError as error:
        drop(asked, error)
        raise
    connection = _joined(engine, asked, invitation)  # an error of that is no reason to end the mesh
    if asked.controller_id and not asked.is_up:
        session = Session.connect(connection, "")
        return on_engine.finish(session, engine, asked, wait_s, on_wait, keeps_queued=keeps_queued)
    return _attached(asked)


def _joined(engine: Engine, asked: Allocation, invitation: Invitation) -> Connection:
    """Connect to a controller that runs; if several programs have waited for it, one of these does: whoever
    comes later by an invitation puts out who came before.
    """
    with records.lock_records():
        known = next((c for c in launch.list_connections() if c.name == asked.mesh and c.host), None)
        return known or _join(engine, asked, invitation)


def _join(engine: Engine, asked: Allocation, invitation: Invitation) -> Connection:
    tunnel = engine.tunnel(asked)
    if tunnel is None:
        return membership.join(invitation.to_token(), asked.mesh)
    return join_by(asked.mesh, f"{tunnel.to}:{asked.bearer.described()}", tunnel, invitation)


def _attached(asked: Allocation) -> Mesh:
    """Attach to a mesh that runs, and is connected here."""
    mesh = starting.attach(asked.mesh)
    if not asked.is_up:
        hosts = [host.index for host in session_of(mesh).request(Status()).hosts if host.index]
        records.write_record(replace(asked, is_up=True, hosts=tuple(hosts)))
        define_on(mesh)
    return mesh


def _cancel(asked: Allocation) -> None:
    """End a mesh at the end of the program that has requested it."""
    with suppress(MeshError):
        if records.read_record(asked.mesh) is not None:
            on_engine.cancel(asked.mesh)
