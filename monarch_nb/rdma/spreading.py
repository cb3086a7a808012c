"""Big arrays to all ranks of a mesh: once to each machine, where they're mapped copy-on-write.

On each machine one process puts a copy into a segment of its own, as it would send it in a message: so its pages are warm the next time, once all
others have let go of it. That's whoever asks, if it's there, else the first rank. Where the source itself can be mapped, nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb._post import here
from monarch_nb._wire import address
from monarch_nb.rdma.broadcast import BroadcastReceipt, spread
from monarch_nb.rdma.buffer import RDMABuffer
from monarch_nb.rdma.lifting import land, lift, snapshot
from monarch_nb.rdma.segments import view

if TYPE_CHECKING:
    from monarch_nb._post.office import Office
    from monarch_nb.actor.proc_mesh import ProcMesh
    from monarch_nb.actor.value_mesh import ValueMesh


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
    places: dict[int, Place | RDMABuffer] = {h: source for h, p in hosts.items() if can_map(source, mesh._procs[p[0]])}
    others = [h for h in hosts if h not in places]
    rooms: list[RDMABuffer] = []
    if others:
        members = {h: [mesh._procs[p] for p in hosts[h]] for h in others}
        made = mesh._at([hosts[h][0] for h in others]).execute(_make_room, source, members).get()
        for host, (found, room) in zip(others, made.values(), strict=True):
            places[host] = found
            rooms.append(room)
    return places, rooms, spread(source, rooms, timeout)


def can_map(source: RDMABuffer, proc: int) -> bool:
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
    found, room = take_room(office, source, members[office.host])
    return found, RDMABuffer(_array(room, found.shape, found.dtype, found.kind))


def take_room(office: Office, source: RDMABuffer, members: Sequence[int]) -> tuple[Place, memoryview]:
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


def _open(places: Places) -> Any:
    found = places[here.office().host]
    return found.open() if isinstance(found, Place) else found.map()


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
