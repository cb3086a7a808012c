"""Big arrays to all ranks of a mesh: once to each machine, where they're mapped copy-on-write.

On each machine one process puts a copy into a segment of its own, as it would send it in a message: so its pages are warm the next time, once all
others have let go of it. That's whoever asks, if it's there, else the first rank. Where the source itself can be mapped, nothing is copied.
"""

from __future__ import annotations

import contextvars
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from monarch_nb._post import here
from monarch_nb._wire import address
from monarch_nb.exceptions import RankTimeout, RDMAError
from monarch_nb.rdma.broadcast import BroadcastReceipt, spread
from monarch_nb.rdma.buffer import RDMABuffer, deadline_of
from monarch_nb.rdma.desk import LEAD, LEFT, desk
from monarch_nb.rdma.gate import Gate, Where, wait_at
from monarch_nb.rdma.lifting import land, lift, snapshot
from monarch_nb.rdma.link import Answer, ask_later
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.memory import memory_of
from monarch_nb.rdma.path import READ, Job
from monarch_nb.rdma.paths import chosen
from monarch_nb.rdma.segments import view

if TYPE_CHECKING:
    from monarch_nb._post.office import Office
    from monarch_nb.actor.future import Future
    from monarch_nb.actor.proc_mesh import ProcMesh
    from monarch_nb.actor.value_mesh import ValueMesh

_LOOK_UP_S = 0.5
_TOGETHER_S = 0.005
"""How long one waits for ranks to be at the gate; who comes later is waited for until it has the variable."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranks of a host find an array. It's small: each of them unpacks it.

    Attributes:
        leader: whose segment it is in.
        segment: pid, descriptor and inode of that.
        shape, dtype, kind: of the array.
    """

    leader: int
    segment: tuple[int, int, int]
    shape: tuple[int, ...]
    dtype: str
    kind: str

    def fields(self) -> tuple[Any, ...]:
        """Return what makes it, in basic types only."""
        return self.leader, self.segment, self.shape, self.dtype, self.kind

    def open(self) -> Any:
        """Return the array, mapped copy-on-write."""
        return _array(here.office().open_segment(self.leader, *self.segment), self.shape, self.dtype, self.kind)


Places = Mapping[int, "Place | RDMABuffer"]
"""By host (its index); a buffer is mapped itself."""


def place(source: RDMABuffer, mesh: ProcMesh, timeout: float | None) -> tuple[Places, list[RDMABuffer], BroadcastReceipt]:
    """Bring a buffer to each machine of a mesh; return where it is, and the room that was made for it: `release` that when all have opened it."""
    hosts: dict[int, list[int]] = {}
    for position, proc in enumerate(mesh._procs):
        hosts.setdefault(address.host_of(proc), []).append(position)
    places: dict[int, Place | RDMABuffer] = {h: source for h, p in hosts.items() if _can_map(source, mesh._procs[p[0]])}
    others = [h for h in hosts if h not in places]
    rooms: list[RDMABuffer] = []
    if others:
        members = {h: [mesh._procs[p] for p in hosts[h]] for h in others}
        made = mesh._at([hosts[h][0] for h in others]).execute(_make_room, source, members).get()
        for host, (found, room) in zip(others, made.values(), strict=True):
            places[host] = found
            rooms.append(room)
    return places, rooms, spread(source, rooms, timeout)


def _can_map(source: RDMABuffer, proc: int) -> bool:
    """Whether a process of its owner's own host can map a buffer."""
    handle = source._handle
    return handle.shared is not None and handle.is_near and address.host_of(proc) == address.host_of(handle.owner.proc)


def release(rooms: Sequence[RDMABuffer]) -> None:
    """Let go of what was made; whoever has opened it keeps it. It needn't be waited for."""
    for room in rooms:
        room.drop()


def _make_room(source: RDMABuffer, members: Mapping[int, Sequence[int]]) -> tuple[Place, RDMABuffer]:
    """On the first rank of a host: make room that the host's ranks will open."""
    office = here.office()
    found, room = _take_room(office, source, members[office.host])
    return found, RDMABuffer(_array(room, found.shape, found.dtype, found.kind))


def _take_room(office: Office, source: RDMABuffer, members: Sequence[int]) -> tuple[Place, memoryview]:
    """Return where the array of a buffer can be put for some ranks of this machine, and as many bytes there."""
    handle = source._handle
    shape = tuple(handle.layout.shape)
    segment = office.pool.take(max(1, handle.nbytes), set(members))
    found = Place(office.me, (os.getpid(), segment.fd, segment.inode), shape, handle.dtype, handle.kind)
    return found, memoryview(segment.map)[: handle.nbytes]


def _array(memory: Any, shape: Sequence[int], dtype: str, kind: str) -> Any:
    if kind == "tensor":
        import torch

        return view(memory, shape, getattr(torch, dtype), True)
    return view(memory, shape, dtype, False)


# --- a mesh's variables


def bind(name: str, places: Places) -> None:
    """On a rank: make a placed array a variable of its cells."""
    here.rank.worker.namespace[name] = _open(places)


def bind_when_filled(name: str, place: Place, gate: Where) -> None:
    """On a rank: map what is being filled, and make it a variable once it is."""
    found = place.open()
    if not wait_at(gate):
        raise RDMAError(f"the rank that filled {name!r} for this machine has failed; the variable is as it was")
    here.rank.worker.namespace[name] = found


def _open(places: Places) -> Any:
    found = places[here.office().host]
    return found.open() if isinstance(found, Place) else found.map()


def begin(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> Future[BroadcastReceipt]:
    """Make a buffer a variable of a mesh's cells."""
    if len({address.host_of(proc) for proc in mesh._procs}) > 1 or _can_map(source, mesh._procs[0]):
        return LocalFuture.of(lambda: _place_and_bind(source, mesh, name, timeout))
    if _leads_itself(source, mesh):
        return _lead_here(source, mesh, name, timeout)
    return _ask_to_lead(source, mesh, name, timeout)


def _leads_itself(source: RDMABuffer, mesh: ProcMesh) -> bool:
    """Whether this process is on the mesh's machine and reads the buffer with nobody's help."""
    handle = source._handle
    if mesh._office.host != address.host_of(mesh._procs[0]) or handle.device != "cpu":
        return False
    try:
        return next(desk().ways(handle, memory_of(bytearray(1)), chosen(), {})).is_quick(handle)
    except RDMAError:
        return False


def _lead_here(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> LocalFuture[BroadcastReceipt]:
    future: LocalFuture[BroadcastReceipt] = LocalFuture()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            receipt, gate = context.run(lead, source, mesh, name, timeout)
        except BaseException as error:
            future.finish(None, error)
            return
        future.finish(receipt)
        gate.close()

    desk().in_background(run)
    return future


def _place_and_bind(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> BroadcastReceipt:
    start = time.perf_counter()
    places, rooms, receipt = place(source, mesh, timeout)
    try:
        mesh.execute(bind, name, places).get()
    finally:
        release(rooms)
    return replace(receipt, num_receivers=len(mesh._procs), seconds=time.perf_counter() - start)


def _ask_to_lead(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> Future[BroadcastReceipt]:
    """On one machine: its first rank does it all, which saves messages to and fro."""
    fields = {"path": LEAD, "source": source, "mesh": mesh, "name": name, "timeout": timeout}
    wait_s = (3600.0 if timeout is None else timeout) + 5.0
    who = f"rank {mesh._own_shape.ranks[0]}"

    def finish(found: dict[str, Any] | None, seconds: float) -> BroadcastReceipt:
        if found is None:
            raise RDMAError(f"{who} has ended; %mesh heal puts it back")
        receipt: BroadcastReceipt = found["receipt"]
        return replace(receipt, seconds=seconds)

    return ask_later(mesh._office, mesh._procs[0], fields, wait_s, who, finish)


def lead_asked(fields: Mapping[str, Any]) -> Answer:
    """On the first rank of a machine, for somebody on another: lead."""
    receipt, gate = lead(fields["source"], fields["mesh"], fields["name"], fields["timeout"])
    return Answer({"receipt": receipt}, gate.close)


def lead(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> tuple[BroadcastReceipt, Gate]:
    """Bring a buffer to all ranks of this machine; the gate is to be closed when whoever waits has been told.

    They're asked first, get ready meanwhile and wait at a gate: once so many bytes have been copied, nothing of theirs is in a processor's cache, and every
    step costs. When all are there it's over before the gate opens: what a rank does next, it does with the variable, for it has no other way.
    """
    start = time.perf_counter()
    found, room = _take_room(mesh._office, source, mesh._procs)
    gate = Gate()
    try:
        bound = mesh._work(b"bind", (name, *found.fields(), gate.where), "broadcast_into")
        receipt = desk().run(Job(READ, source._handle, memory_of(room), deadline_of(timeout)))
        gate.decide()
        if bound.done() or not gate.wait_for(len(mesh._procs), _TOGETHER_S):  # some are busy with a cell, or have failed
            gate.open()
            _await(bound)
    except BaseException:
        gate.close()
        raise
    return BroadcastReceipt(source.size(), len(mesh._procs), (receipt,), 1, time.perf_counter() - start), gate


def _await(bound: Future[Any]) -> None:
    """Wait as long as it takes, but not longer than this process is in its mesh."""
    plane = desk()
    while not plane.closed:
        with suppress(RankTimeout):
            bound.get(_LOOK_UP_S)
            return
    raise RDMAError(LEFT)


def push(mesh: ProcMesh, variables: Mapping[str, Any], timeout: float | None = None) -> None:
    """Set variables on ranks of which some are on other machines: big arrays go once to each."""
    light, arrays = lift(dict(variables))
    sources = [snapshot(array) for array in arrays]
    placed: list[Places] = []
    rooms: list[RDMABuffer] = []
    try:
        for source in sources:
            places, made, _ = place(source, mesh, timeout)
            placed.append(places)
            rooms += made
        mesh.execute(set_variables, light, placed).get()
    finally:
        release(rooms)
        for source in sources:
            source.drop()


def set_variables(light: Mapping[str, Any], placed: Sequence[Places]) -> None:
    """On a rank: take variables whose big arrays were placed before."""
    here.rank.worker.namespace.update(land(light, [_open(places) for places in placed]))


def pull(mesh: ProcMesh, names: Sequence[str]) -> ValueMesh[dict[str, Any]]:
    """Return variables of ranks of which some are on other machines: big arrays are read from each rank directly."""
    found = mesh.execute(lend_variables, list(names)).get()

    def fetch(lent: tuple[Any, list[RDMABuffer]]) -> dict[str, Any]:
        light, buffers = lent
        try:
            return land(light, [buffer.read(None) for buffer in buffers])  # type: ignore[no-any-return]
        finally:
            for buffer in buffers:
                buffer.drop().get()

    return found.map(fetch)


def lend_variables(names: Sequence[str]) -> tuple[Any, list[RDMABuffer]]:
    """On a rank: return variables, with buffers of copies of the big arrays."""
    light, arrays = lift(here.rank.worker.variables(names))
    return light, [snapshot(array) for array in arrays]
