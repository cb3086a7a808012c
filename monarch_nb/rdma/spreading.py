"""Big arrays to all ranks of a mesh: once to each machine, where they're mapped copy-on-write.

On each machine one rank, the first, gets a copy in a segment of its own, as it would send it in a message: so its pages are warm the next
time, once all others have let go of it. Where the source itself can be mapped, nothing is copied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from monarch_nb._post import here
from monarch_nb._wire import address
from monarch_nb.rdma.broadcast import BroadcastReceipt, spread
from monarch_nb.rdma.buffer import RDMABuffer, deadline_of
from monarch_nb.rdma.desk import desk
from monarch_nb.rdma.lifting import land, lift, snapshot
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.path import READ, Job
from monarch_nb.rdma.segments import view

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh
    from monarch_nb.actor.value_mesh import ValueMesh


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks of a host find an array.

    Attributes:
        buffer: what is mapped, or filled.
        leader: whose segment it is in; none: the buffer itself is mapped.
        segment: pid, descriptor and inode of that.
    """

    buffer: RDMABuffer
    leader: int | None = None
    segment: tuple[int, int, int] = (0, 0, 0)

    def open(self) -> Any:
        """Return the array, mapped copy-on-write."""
        if self.leader is None:
            return self.buffer.map()
        mapping = here.office().open_segment(self.leader, *self.segment)
        handle = self.buffer._handle
        return _array(mapping, handle.layout.shape, handle.dtype, handle.kind)


Places = Mapping[int, Place]
"""By host (its index)."""


def place(source: RDMABuffer, mesh: ProcMesh, timeout: float | None) -> tuple[Places, BroadcastReceipt]:
    """Bring a buffer to each machine of a mesh; `release` it when all have opened it."""
    hosts: dict[int, list[int]] = {}
    for position, proc in enumerate(mesh._procs):
        hosts.setdefault(address.host_of(proc), []).append(position)
    places: dict[int, Place] = {h: Place(source) for h, p in hosts.items() if _can_map(source, mesh._procs[p[0]])}
    others = [h for h in hosts if h not in places]
    if others:
        members = {h: [mesh._procs[p] for p in hosts[h]] for h in others}
        leaders = mesh._at([hosts[h][0] for h in others])
        if len(others) == 1:  # nobody to pass it on to: one message does both
            room, receipt = leaders.execute(_make_room_and_fill, source, members, timeout).get().item()
            return places | {others[0]: room}, receipt
        found = leaders.execute(_make_room, source, members).get()
        places |= dict(zip(others, found.values(), strict=True))
    return places, spread(source, [places[h].buffer for h in others], timeout)


def _can_map(source: RDMABuffer, proc: int) -> bool:
    """Whether a process of its owner's own host can map a buffer."""
    handle = source._handle
    return handle.shared is not None and handle.is_near and address.host_of(proc) == address.host_of(handle.owner.proc)


def release(places: Places, source: RDMABuffer) -> None:
    """Let go of what was made; whoever has opened it keeps it. It needn't be waited for."""
    for each in places.values():
        if each.buffer is not source:
            each.buffer.drop()


def _make_room(source: RDMABuffer, members: Mapping[int, Sequence[int]]) -> Place:
    """On the first rank of a host: make room that the host's ranks will open."""
    office = here.office()
    handle = source._handle
    segment = office.pool.take(max(1, handle.nbytes), set(members[office.host]))
    buffer = RDMABuffer(_array(segment.map, handle.layout.shape, handle.dtype, handle.kind))
    return Place(buffer, office.me, (os.getpid(), segment.fd, segment.inode))


def _make_room_and_fill(
    source: RDMABuffer, members: Mapping[int, Sequence[int]], timeout: float | None
) -> tuple[Place, BroadcastReceipt]:
    """The same, and fill it here and now."""
    found = _make_room(source, members)
    start = time.perf_counter()
    region = desk().region_of(found.buffer._handle)
    receipt = desk().run(Job(READ, source._handle, region.memory, deadline_of(timeout)))
    return found, BroadcastReceipt(source.size(), 1, (receipt,), 1, time.perf_counter() - start)


def _array(memory: Any, shape: Sequence[int], dtype: str, kind: str) -> Any:
    if kind == "tensor":
        import torch

        return view(memory, shape, getattr(torch, dtype), True)
    return view(memory, shape, dtype, False)


# --- a mesh's variables


def bind(name: str, places: Places) -> None:
    """On a rank: make a placed array a variable of its cells."""
    here.rank.worker.namespace[name] = places[here.office().host].open()


def begin(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> LocalFuture[BroadcastReceipt]:
    """Make a buffer a variable of a mesh's cells, in a thread of its own."""

    def run() -> BroadcastReceipt:
        start = time.perf_counter()
        places, receipt = place(source, mesh, timeout)
        try:
            mesh.execute(bind, name, places).get()
        finally:
            release(places, source)
        return replace(receipt, num_receivers=len(mesh._procs), seconds=time.perf_counter() - start)

    return LocalFuture.of(run)


def push(mesh: ProcMesh, variables: Mapping[str, Any], timeout: float | None = None) -> None:
    """Set variables on ranks of which some are on other machines: big arrays go once to each."""
    light, arrays = lift(dict(variables))
    sources = [snapshot(array) for array in arrays]
    placed: list[Places] = []
    try:
        for source in sources:
            placed.append(place(source, mesh, timeout)[0])
        mesh.execute(set_variables, light, placed).get()
    finally:
        for source, places in zip(sources, placed, strict=False):
            release(places, source)
        for source in sources:
            source.drop()


def set_variables(light: Mapping[str, Any], placed: Sequence[Places]) -> None:
    """On a rank: take variables whose big arrays were placed before."""
    host = here.office().host
    here.rank.worker.namespace.update(land(light, [places[host].open() for places in placed]))


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
