"""Makes a buffer a variable of a mesh's cells: one process, the leader, brings it to all ranks of its
machine.

On one machine whoever asks does it all, or the first rank if that is elsewhere; on several, each has its room
filled first (`host_broadcast`).
"""

from __future__ import annotations

import contextvars
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from monarch_nb._protocol.work import Work
from monarch_nb._shape import name_ranks
from monarch_nb._transport import process_context
from monarch_nb.actor.handle import placement_of, transport_of
from monarch_nb.actor.proc_mesh import part_at, work_on
from monarch_nb.exceptions import RankTimeout, RDMAError, TransferTimeout
from monarch_nb.rdma.broadcast.buffers import BroadcastReceipt
from monarch_nb.rdma.broadcast.hosts import (
    ArrayLocation,
    allocate_room,
    bind,
    broadcast_to_hosts,
    can_map,
    release,
)
from monarch_nb.rdma.broadcast.questions import Lead
from monarch_nb.rdma.broadcast.ready_barrier import BarrierAddress, ReadyBarrier, wait_at
from monarch_nb.rdma.buffer import RDMABuffer, deadline_of, handle_of
from monarch_nb.rdma.data_plane import LEFT, data_plane
from monarch_nb.rdma.link import Answer, ask_later
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.memory import memory_of
from monarch_nb.rdma.path import READ, Job
from monarch_nb.rdma.paths import chosen

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future
    from monarch_nb.actor.proc_mesh import ProcMesh

_LOOK_UP_S = 0.5
_TOGETHER_S = 0.005
"""How long to wait for ranks at the barrier; later ones are waited for until they have the variable."""


def begin_broadcast(
    source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None
) -> Future[BroadcastReceipt]:
    """Start to assign a buffer's array to a variable of a mesh's cells. If a cell on a rank of that mesh
    calls this, its own rank has the variable, too, once the broadcast is complete.
    """
    own = _own_position(mesh)
    if own is None:
        return _begin_on_hosts(source, mesh, name, timeout)

    def keep(receipt: BroadcastReceipt) -> BroadcastReceipt:
        process_context.this_rank().namespace[name] = source.read(timeout)
        return replace(receipt, num_receivers=receipt.num_receivers + 1)

    others = [position for position in range(len(mesh)) if position != own]
    if not others:
        return LocalFuture.of(lambda: keep(BroadcastReceipt(source.size(), 0, (), 0, 0.0)))
    return _begin_on_hosts(source, part_at(mesh, others), name, timeout).then(keep)


def _own_position(mesh: ProcMesh) -> int | None:
    """Return this rank's position in a mesh if its main thread is the caller: the main thread can't execute a
    request before the call returns. Otherwise None.
    """
    if process_context.rank is None or threading.current_thread() is not threading.main_thread():
        return None
    me, procs = transport_of(mesh).me, placement_of(mesh).procs
    return procs.index(me) if me in procs else None


def _begin_on_hosts(
    source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None
) -> Future[BroadcastReceipt]:
    if len(mesh.host_indices) > 1 or can_map(source, placement_of(mesh).procs[0]):
        return LocalFuture.of(lambda: _place_and_bind(source, mesh, name, timeout))
    if _can_lead_here(source, mesh):
        return _lead_here(source, mesh, name, timeout)
    return _ask_to_lead(source, mesh, name, timeout)


def _can_lead_here(source: RDMABuffer, mesh: ProcMesh) -> bool:
    """Return whether this process is on the mesh's machine, and can read the buffer without any other process
    taking part.
    """
    handle = handle_of(source)
    if transport_of(mesh).host != mesh.host_indices[0] or handle.device != "cpu":
        return False
    try:
        return next(data_plane().ways(handle, memory_of(bytearray(1)), chosen(), {})).is_quick(handle)
    except RDMAError:
        return False


def _lead_here(
    source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None
) -> LocalFuture[BroadcastReceipt]:
    future: LocalFuture[BroadcastReceipt] = LocalFuture()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            receipt, barrier = context.run(lead, source, mesh, name, timeout)
        except BaseException as error:
            future.finish(None, error)
            return
        future.finish(receipt)
        barrier.close()

    if not data_plane().in_background(run):
        future.finish(None, RDMAError(LEFT))
    return future


def _place_and_bind(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> BroadcastReceipt:
    start, deadline = time.perf_counter(), deadline_of(timeout)
    locations, rooms, receipt = broadcast_to_hosts(source, mesh, timeout)
    try:
        _await(
            mesh.execute(bind, name, locations),
            mesh,
            timeout,
            deadline,
            f"{name!r} is set later, if the buffer still exists then",
        )
    finally:
        release(rooms)
    return replace(receipt, num_receivers=len(mesh), seconds=time.perf_counter() - start)


def _ask_to_lead(
    source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None
) -> Future[BroadcastReceipt]:
    """Ask the first rank of a one-machine mesh to run the broadcast, which takes fewer messages than to run
    it from here.
    """
    question = Lead(source, mesh, name, timeout)
    wait_s = (3600.0 if timeout is None else timeout) + 5.0
    who = f"rank {placement_of(mesh).shape.ranks[0]}"

    def finish(receipt: BroadcastReceipt | None, seconds: float) -> BroadcastReceipt:
        if receipt is None:
            raise RDMAError(f"{who} has ended; %mesh heal puts it back")
        return replace(receipt, seconds=seconds)

    return ask_later(transport_of(mesh), placement_of(mesh).procs[0], question, wait_s, who, finish)


def lead_asked(question: Lead) -> Answer:
    """Run the broadcast on the first rank of a machine, at the request of another machine."""
    receipt, barrier = lead(question.source, question.mesh, question.name, question.timeout)
    return Answer(receipt, barrier.close)


def lead(
    source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None
) -> tuple[BroadcastReceipt, ReadyBarrier]:
    """Bring a buffer to all ranks of this machine; the barrier is to be closed when whoever waits has been
    notified.

    They're asked first, get ready meanwhile and wait at a barrier: once so many bytes have been copied,
    nothing of theirs is in a processor's cache, and every step costs. When all are there it's over before the
    barrier opens: what a rank does next, it does with the variable, for it has no other way.
    """
    start, deadline = time.perf_counter(), deadline_of(timeout)
    found, room = allocate_room(transport_of(mesh), source, placement_of(mesh).procs)
    barrier = ReadyBarrier()
    try:
        bound = work_on(mesh, Work.BIND, (name, *found.fields(), barrier.where), "broadcast_into")
        receipt = data_plane().run(Job(READ, handle_of(source), memory_of(room), deadline))
        barrier.mark_done()
        if bound.done() or not barrier.wait_for_arrivals(
            len(mesh), _TOGETHER_S
        ):  # some ranks are busy with a cell, or have failed
            barrier.open()
            _await(bound, mesh, timeout, deadline, f"{name!r} is unchanged")
    except BaseException:
        barrier.close()
        raise
    return BroadcastReceipt(source.size(), len(mesh), (receipt,), 1, time.perf_counter() - start), barrier


def _await(
    bound: Future[Any], mesh: ProcMesh, timeout: float | None, deadline: float | None, otherwise: str
) -> None:
    """Wait for busy ranks, at most until this process leaves its mesh. `otherwise`: the state of the variable
    on ranks that are late, for the error.
    """
    plane = data_plane()
    while not plane.closed:
        left_s = _LOOK_UP_S if deadline is None else deadline - time.monotonic()
        with suppress(RankTimeout):
            bound.get(max(0.0, min(_LOOK_UP_S, left_s)))
            return
        if left_s <= 0:
            late = placement_of(mesh).ranks_among(bound.at_work())
            raise TransferTimeout(
                f"{name_ranks(late)} did not receive it within {timeout:g} s; is the main thread busy? "
                f"The other ranks have it; on {name_ranks(late)}, {otherwise}"
            )
    raise RDMAError(LEFT)


# --- on a rank


def bind_when_filled(name: str, location: ArrayLocation, barrier: BarrierAddress) -> None:
    """Map the array that is being filled on this rank, and define the variable once it is complete."""
    found = location.open()
    if not wait_at(barrier):
        raise RDMAError(f"the rank that copied {name!r} to this machine failed; the variable is unchanged")
    process_context.this_rank().namespace[name] = found
