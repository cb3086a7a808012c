"""Big arrays to all ranks of a mesh: once to each machine, where they're mapped copy-on-write.

On each machine one rank, the first, gets a copy in memory that the others can map. Where the source itself can be mapped, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._wire import address
from monarch_nb.rdma.broadcast import BroadcastReceipt, spread
from monarch_nb.rdma.buffer import RDMABuffer
from monarch_nb.rdma.lifting import land, lift, snapshot
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.segments import empty

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh
    from monarch_nb.actor.value_mesh import ValueMesh

Place = Mapping[int, RDMABuffer]
"""For each host (by its index), the buffer that its ranks map."""



def place(source: RDMABuffer, mesh: ProcMesh, timeout: float | None) -> tuple[Place, BroadcastReceipt]:
    """Bring a buffer to each machine of a mesh; `release` it when all have mapped it."""
    leaders: dict[int, int] = {}
    for position, proc in enumerate(mesh._procs):
        leaders.setdefault(address.host_of(proc), position)
    handle = source._handle
    near = {h for h, p in leaders.items() if handle.shared is not None and _sees(mesh, p, source)}
    places: dict[int, RDMABuffer] = dict.fromkeys(near, source)
    others = {h: p for h, p in leaders.items() if h not in near}
    if others:
        found = mesh._at(list(others.values())).execute(_make_room, handle.layout.shape, handle.dtype, handle.kind).get()
        places |= dict(zip(others, found.values(), strict=True))
    receipt = spread(source, [places[h] for h in others], timeout)
    return places, receipt


def _sees(mesh: ProcMesh, position: int, source: RDMABuffer) -> bool:
    """Whether a rank shares a machine with the source. Ranks of the source's own host do."""
    return address.host_of(mesh._procs[position]) == address.host_of(source._handle.owner.proc) and source._handle.is_near


def release(places: Place, source: RDMABuffer) -> None:
    """Let go of what was made; whoever has mapped it keeps it."""
    for buffer in places.values():
        if buffer is not source:
            buffer.drop()


def _make_room(shape: Sequence[int], dtype: str, kind: str) -> RDMABuffer:
    if kind == "tensor":
        import torch

        return RDMABuffer(empty(tuple(shape), dtype=getattr(torch, dtype), populate=True))
    return RDMABuffer(empty(tuple(shape), dtype=dtype if kind == "array" else "uint8", kind="array", populate=True))


def take(places: Sequence[Place]) -> list[Any]:
    """On a rank: map what was placed on its machine."""
    from monarch_nb._post import here

    mine = here.office().host
    return [by_host[mine].map() for by_host in places]


def bind(name: str, places: Sequence[Place]) -> None:
    """On a rank: make a placed array a variable of its cells."""
    from monarch_nb._post import here

    here.rank.worker.namespace[name] = take(places)[0]


def begin(source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None) -> LocalFuture[BroadcastReceipt]:
    """Make a buffer a variable of a mesh's cells, in a thread of its own."""

    def run() -> BroadcastReceipt:
        places, receipt = place(source, mesh, timeout)
        try:
            mesh.execute(bind, name, [places]).get()
        finally:
            release(places, source)
        return receipt

    return LocalFuture.of(run)


def push(mesh: ProcMesh, variables: Mapping[str, Any], timeout: float | None = None) -> None:
    """Set variables on ranks of which some are on other machines: big arrays go once to each."""
    light, arrays = lift(dict(variables))
    sources = [snapshot(array) for array in arrays]
    placed: list[Place] = []
    try:
        for source in sources:
            placed.append(place(source, mesh, timeout)[0])
        mesh.execute(set_variables, light, placed).get()
    finally:
        for source, places in zip(sources, placed, strict=False):
            release(places, source)
        for source in sources:
            source.drop()


def set_variables(light: Mapping[str, Any], placed: Sequence[Place]) -> None:
    """On a rank: take variables whose big arrays were placed before."""
    from monarch_nb._post import here

    here.rank.worker.namespace.update(land(light, take(placed)))


def pull(mesh: ProcMesh, names: Sequence[str]) -> ValueMesh[dict[str, Any]]:
    """Return variables of ranks of which some are on other machines: big arrays are read from each rank directly."""
    found = mesh.execute(lend_variables, list(names)).get()

    def fetch(lent: tuple[Any, list[RDMABuffer]]) -> dict[str, Any]:
        light, buffers = lent
        try:
            return land(light, [buffer.read(None) for buffer in buffers])  # type: ignore[no-any-return]
        finally:
            for buffer in buffers:
                buffer.drop()

    return found.map(fetch)


def lend_variables(names: Sequence[str]) -> tuple[Any, list[RDMABuffer]]:
    """On a rank: return variables, with buffers of copies of the big arrays."""
    from monarch_nb._post import here

    light, arrays = lift(here.rank.worker.variables(names))
    return light, [snapshot(array) for array in arrays]
