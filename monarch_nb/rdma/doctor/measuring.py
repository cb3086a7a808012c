"""Measures each path between chosen ranks: bytes are read by one path after the other, one pair at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from monarch_nb._wire import address
from monarch_nb.actor.handle import placement_of
from monarch_nb.exceptions import MeshError
from monarch_nb.rdma.buffer import RDMABuffer
from monarch_nb.rdma.doctor.benchmark import SMALL_BYTES, copy_once, hold, let_go, read_by_paths, reason

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

HOLD_S = 30.0
PAIR_S = 300.0
MAX_BY_DEFAULT = 4
MAX_CHOSEN = 16
COPY = "memcpy"
"""Name in the table of a plain copy within one process."""
ANY = "any"
"""In place of a path's name, if ranks couldn't be measured at all."""


@dataclass(frozen=True)
class Measurement:
    """Reads of one rank's memory by another, by one path.

    Attributes:
        source, reader: ranks: whose memory, and who has read it.
        path: its name; `memcpy`: a copy within `reader`, by one thread, to compare with.
        source_device, reader_device: where the memory was, at either end.
        gb_per_s: of the large reads, the best; None if there were none.
        latency_s: of reads of 4 KiB, the best.
        why_not: why there's no figure.
    """

    source: int
    reader: int
    path: str
    gb_per_s: float | None = None
    latency_s: float | None = None
    why_not: str = ""
    source_device: str = "cpu"
    reader_device: str = "cpu"


def hosts_of(mesh: Mesh) -> dict[int, int]:
    """Return the host index of each rank."""
    return {rank: address.host_of(proc) for rank, proc in enumerate(placement_of(mesh).procs)}


def representatives(hosts: Mapping[int, int]) -> tuple[int, ...]:
    """Return the first rank of each host, and a second one of the first host; at most `MAX_BY_DEFAULT`.

    >>> representatives({0: 0, 1: 0, 2: 0, 3: 1, 4: 1})
    (0, 1, 3)
    """
    by_host: dict[int, list[int]] = {}
    for rank, host in sorted(hosts.items()):
        by_host.setdefault(host, []).append(rank)
    chosen = [rank for ranks in list(by_host.values())[:1] for rank in ranks[:2]]
    return tuple(chosen + [ranks[0] for ranks in list(by_host.values())[1:]])[:MAX_BY_DEFAULT]


def pairs(ranks: Sequence[int], hosts: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the ranks that read from each rank: between two hosts in both directions, within one host in
    one.

    >>> pairs([0, 1, 3], {0: 0, 1: 0, 3: 1})
    {0: [1, 3], 1: [3], 3: [0, 1]}
    """
    found = {a: [b for b in ranks if b != a and (a < b or hosts[a] != hosts[b])] for a in ranks}
    return {source: readers for source, readers in found.items() if readers}


def measure(
    mesh: Mesh, ranks: Sequence[int], size_bytes: int, *, all_paths: bool = False
) -> list[Measurement]:
    """Measure every path between ranks, and a plain copy on each of their hosts."""
    hosts = hosts_of(mesh)
    firsts = {hosts[rank]: rank for rank in reversed(ranks)}
    found = [_copy_on(mesh, rank, size_bytes) for rank in sorted(firsts.values())]
    for source, readers in pairs(ranks, hosts).items():
        for on_gpu in (False, True):
            found += _measured(mesh, source, readers, size_bytes, on_gpu=on_gpu, all_paths=all_paths)
    return found


def probe(mesh: Mesh, ranks: Sequence[int]) -> list[Measurement]:
    """Test whether ranks of one host can read each other's memory. Takes milliseconds."""
    hosts = hosts_of(mesh)
    near = {a: [b for b in readers if hosts[a] == hosts[b]] for a, readers in pairs(ranks, hosts).items()}
    return [
        m
        for source, readers in near.items()
        if readers
        for m in _measured(mesh, source, readers, SMALL_BYTES, only=("shm",), large=False)
    ]


def _copy_on(mesh: Mesh, rank: int, size_bytes: int) -> Measurement:
    try:
        return Measurement(rank, rank, COPY, ask(mesh, rank, copy_once, size_bytes))
    except MeshError as error:
        return Measurement(rank, rank, COPY, why_not=reason(error))


def _measured(
    mesh: Mesh,
    source: int,
    readers: Sequence[int],
    size_bytes: int,
    *,
    on_gpu: bool = False,
    only: Sequence[str] = (),
    all_paths: bool = False,
    large: bool = True,
) -> Iterator[Measurement]:
    try:
        with _holding(mesh, source, size_bytes, on_gpu) as buffer:
            if buffer is None:
                return
            for reader in readers:
                try:
                    for row in ask(mesh, reader, read_by_paths, buffer, only, all_paths, large):
                        yield Measurement(source, reader, source_device=buffer.device, **asdict(row))
                except MeshError as error:
                    yield Measurement(source, reader, ANY, why_not=reason(error))
    except MeshError as error:
        yield from (Measurement(source, reader, ANY, why_not=reason(error)) for reader in readers)


@contextmanager
def _holding(mesh: Mesh, rank: int, size_bytes: int, on_gpu: bool) -> Iterator[RDMABuffer | None]:
    token = secrets.token_hex(8)
    try:
        yield ask(mesh, rank, hold, token, size_bytes, on_gpu, timeout_s=HOLD_S)
    finally:
        with suppress(MeshError):  # a rank that has ended holds nothing
            ask(mesh, rank, let_go, token, timeout_s=HOLD_S)


def ask(mesh: Mesh, rank: int, function: Callable[..., Any], *args: Any, timeout_s: float = PAIR_S) -> Any:
    """Call a function on the main thread of one rank."""
    return mesh.part([rank]).execute(function, *args).get(timeout_s).item()
