"""Brings big arrays to all ranks of a mesh: once to each machine, where ranks map them copy-on-write.

On each machine one process puts a copy into a segment of its own, as it would send it in a message: so its
pages are warm the next time, once all others have let go of it. That's whoever asks, if it's there, else the
first rank. Where the source itself can be mapped, nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb._transport import process_context
from monarch_nb._wire import address
from monarch_nb.actor.handle import placement_of
from monarch_nb.actor.proc_mesh import part_at
from monarch_nb.rdma.broadcast.buffers import BroadcastReceipt, spread
from monarch_nb.rdma.buffer import RDMABuffer, handle_of
from monarch_nb.rdma.extract import extract, restore, snapshot
from monarch_nb.rdma.handle import MemoryKind
from monarch_nb.rdma.segments import view

if TYPE_CHECKING:
    from monarch_nb._transport.transport import Transport
    from monarch_nb.actor.proc_mesh import ProcMesh
    from monarch_nb.actor.value_mesh import ValueMesh


@dataclass(frozen=True, slots=True)
class ArrayLocation:
    """The location of an array that the ranks of a host map. It's small: each of them unpacks it.

    Attributes:
        leader: whose segment it is in.
        segment: pid, descriptor and inode of that.
        shape, dtype, kind: of the array.
    """

    leader: int
    segment: tuple[int, int, int]
    shape: tuple[int, ...]
    dtype: str
    kind: MemoryKind

    def fields(self) -> tuple[Any, ...]:
        """Return the location's fields as basic types; `ArrayLocation(*fields)` restores it."""
        return self.leader, self.segment, self.shape, self.dtype, self.kind

    def open(self) -> Any:
        """Return the array, mapped copy-on-write."""
        return _array(
            process_context.transport().open_segment(self.leader, *self.segment),
            self.shape,
            self.dtype,
            self.kind,
        )


ArrayLocations = Mapping[int, "ArrayLocation | RDMABuffer"]
"""Locations by host (its index); a buffer is mapped itself."""


def broadcast_to_hosts(
    source: RDMABuffer, mesh: ProcMesh, timeout: float | None
) -> tuple[ArrayLocations, list[RDMABuffer], BroadcastReceipt]:
    """Copy a buffer to each machine of a mesh. Return the array's locations, the temporary buffers that were
    allocated, and a receipt; call `release` with the buffers once all ranks have opened the array.
    """
    where = placement_of(mesh)
    hosts = where.positions_by_host()
    locations: dict[int, ArrayLocation | RDMABuffer] = {
        h: source for h, p in hosts.items() if can_map(source, where.procs[p[0]])
    }
    others = [h for h in hosts if h not in locations]
    rooms: list[RDMABuffer] = []
    if others:
        members = {h: where.procs_at(hosts[h]) for h in others}
        made = part_at(mesh, [hosts[h][0] for h in others]).execute(_make_room, source, members).get()
        for host, (found, room) in zip(others, made.values(), strict=True):
            locations[host] = found
            rooms.append(room)
    return locations, rooms, spread(source, rooms, timeout)


def can_map(source: RDMABuffer, proc: int) -> bool:
    """Return whether process `proc` can map a buffer: its memory is shared, and the process is on the owner's
    host.
    """
    handle = handle_of(source)
    return (
        handle.shared is not None
        and handle.is_near
        and address.host_of(proc) == address.host_of(handle.owner.proc)
    )


def release(rooms: Sequence[RDMABuffer]) -> None:
    """Release temporary buffers, without waiting. Ranks that have opened them keep their mappings."""
    for room in rooms:
        room.drop()


def _make_room(source: RDMABuffer, members: Mapping[int, Sequence[int]]) -> tuple[ArrayLocation, RDMABuffer]:
    """Allocate memory on a host's first rank, for the ranks of that host to map."""
    transport = process_context.transport()
    found, room = allocate_room(transport, source, members[transport.host])
    return found, RDMABuffer(_array(room, found.shape, found.dtype, found.kind))


def allocate_room(
    transport: Transport, source: RDMABuffer, members: Sequence[int]
) -> tuple[ArrayLocation, memoryview]:
    """Allocate shared memory for a buffer's array, for some ranks of this machine. Return the location of the
    array, and the memory.
    """
    handle = handle_of(source)
    shape = tuple(handle.layout.shape)
    segment = transport.pool.acquire_segment(max(1, handle.nbytes), set(members))
    found = ArrayLocation(
        transport.me, (os.getpid(), segment.fd, segment.inode), shape, handle.dtype, handle.kind
    )
    return found, memoryview(segment.map)[: handle.nbytes]


def _array(memory: Any, shape: Sequence[int], dtype: str, kind: MemoryKind) -> Any:
    if kind == "tensor":
        import torch

        return view(memory, shape, getattr(torch, dtype), True)
    return view(memory, shape, dtype, False)


# --- a mesh's variables


def bind(name: str, locations: ArrayLocations) -> None:
    """Assign an array that was copied to this rank's machine to a variable."""
    process_context.this_rank().namespace[name] = _open(locations)


def _open(locations: ArrayLocations) -> Any:
    found = locations[process_context.transport().host]
    return found.open() if isinstance(found, ArrayLocation) else found.map()


def push(mesh: ProcMesh, variables: Mapping[str, Any], timeout: float | None = None) -> None:
    """Set variables on ranks of several machines; big arrays are sent once to each machine."""
    light, arrays = extract(dict(variables))
    sources = [snapshot(array) for array in arrays]
    locations_of_all: list[ArrayLocations] = []
    rooms: list[RDMABuffer] = []
    try:
        for source in sources:
            locations, made, _ = broadcast_to_hosts(source, mesh, timeout)
            locations_of_all.append(locations)
            rooms += made
        mesh.execute(set_variables, light, locations_of_all).get()
    finally:
        release(rooms)
        for source in sources:
            source.drop()


def set_variables(light: Mapping[str, Any], locations_of_all: Sequence[ArrayLocations]) -> None:
    """Set variables whose big arrays were copied to this rank's machine before."""
    process_context.this_rank().namespace.update(
        restore(light, [_open(locations) for locations in locations_of_all])
    )


def pull(mesh: ProcMesh, names: Sequence[str]) -> ValueMesh[dict[str, Any]]:
    """Return variables of ranks of several machines; big arrays are read from each rank directly."""
    found = mesh.execute(export_variables, list(names)).get()

    def fetch(exported: tuple[Any, list[RDMABuffer]]) -> dict[str, Any]:
        light, buffers = exported
        try:
            return restore(light, [buffer.read(None) for buffer in buffers])  # type: ignore[no-any-return]
        finally:
            for buffer in buffers:
                buffer.drop().get()

    return found.map(fetch)


def export_variables(names: Sequence[str]) -> tuple[Any, list[RDMABuffer]]:
    """Return variables of this rank, with their big arrays copied into buffers."""
    light, arrays = extract(process_context.this_rank().variables(names))
    return light, [snapshot(array) for array in arrays]
