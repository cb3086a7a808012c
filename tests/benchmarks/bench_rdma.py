"""The data plane beside a plain copy in memory, in one run: `python tests/benchmarks/bench_rdma.py`.

"One copy" is what two processes need at the least: as many bytes read from the other's memory by one
`process_vm_readv`, warm on both sides. "memmove" is a stricter floor: the same within one process. Each
figure is measured in turn with both; the best of some rounds counts, for all.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from bench_actor import wait_until_warm

from monarch_nb.actor import Actor, endpoint, shutdown_context, this_host
from monarch_nb.rdma import Published, RDMABuffer, empty, load_into, publish

MIB = 1 << 20
ROUNDS = 7
BROADCASTS = 31


class Memory(Actor):
    """Has memory to read."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    @endpoint
    def make(self, num_bytes: int, mappable: bool) -> RDMABuffer:
        self.kept.append((empty if mappable else torch.empty)(num_bytes, dtype=torch.uint8).fill_(1))
        return RDMABuffer(self.kept[-1])

    @endpoint
    def read(self, buffer: RDMABuffer, rounds: int) -> float:
        room = torch.zeros(buffer.size(), dtype=torch.uint8)
        return best(lambda: buffer.read_into(room).get(), rounds)

    @endpoint
    def expose(self, num_bytes: int) -> tuple[int, int]:
        self.exposed = torch.ones(num_bytes, dtype=torch.uint8)
        return os.getpid(), self.exposed.data_ptr()

    @endpoint
    def one_copy(self, whose: tuple[int, int], num_bytes: int) -> float:
        return remote_copy_s(*whose, num_bytes)

    @endpoint
    def memmove(self, num_bytes: int) -> float:
        return copy_s(num_bytes)

    @endpoint
    def publish(self, num: int, num_bytes: int) -> Published:
        self.state = {f"p{i}": torch.ones(num_bytes // 4) for i in range(num)}
        return publish(self.state)

    @endpoint
    def load(self, published: Published, num: int, num_bytes: int) -> float:
        state = {f"p{i}": torch.zeros(num_bytes // 4) for i in range(num)}
        return best(lambda: load_into(state, published), ROUNDS)

    @endpoint
    def forget(self) -> None:
        self.kept.clear()
        self.exposed = None


def best(function: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the least time of a call in seconds."""
    return min(times(function, rounds))


def times(function: Callable[[], object], rounds: int) -> list[float]:
    """Return the times of some calls in seconds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return found


def copy_s(num_bytes: int, rounds: int = ROUNDS) -> float:
    """Return the time of one copy out of shared memory, in seconds."""
    fd = os.memfd_create("floor")
    os.ftruncate(fd, num_bytes)
    source = mmap.mmap(fd, num_bytes)
    os.close(fd)
    address = ctypes.addressof(ctypes.c_char.from_buffer(source))
    ctypes.memset(address, 1, num_bytes)
    target = torch.zeros(num_bytes, dtype=torch.uint8)
    return best(lambda: ctypes.memmove(target.data_ptr(), address, num_bytes), rounds)


def remote_copy_s(pid: int, address: int, num_bytes: int, rounds: int = ROUNDS) -> float:
    """Return the time of one copy out of another process's memory, in seconds."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    target = torch.zeros(num_bytes, dtype=torch.uint8)

    def copy() -> None:
        done = 0
        while done < num_bytes:  # one call moves at most 2 GiB
            here, there = (
                (ctypes.c_size_t * 2)(start + done, num_bytes - done)
                for start in (target.data_ptr(), address)
            )  # iovecs
            moved = read(
                pid,
                ctypes.byref(here),
                ctypes.c_ulong(1),
                ctypes.byref(there),
                ctypes.c_ulong(1),
                ctypes.c_ulong(0),
            )
            if moved <= 0:
                raise OSError(ctypes.get_errno(), "process_vm_readv")
            done += moved

    return best(copy, rounds)


@dataclass(frozen=True)
class Floors:
    """Seconds that as many bytes take without us."""

    one_copy: float
    memmove: float

    def times(self, copies: float) -> Floors:
        return Floors(copies * self.one_copy, copies * self.memmove)


def floors(owner: Any, reader: Any, num_bytes: int) -> Floors:
    """Measure both floors, on the ranks whose figures they're for."""
    whose = owner.expose.call_one(num_bytes).get()
    return Floors(reader.one_copy.call_one(whose, num_bytes).get(), reader.memmove.call_one(num_bytes).get())


def row(what: str, ours_s: float, floor_s: Floors, aim: str, num_bytes: int) -> None:
    """Print a figure, and its speed as a multiple of each floor's."""
    print(
        f"{what:<58} {ours_s * 1e3:>9.3f} ms {num_bytes / ours_s / 1e9:>7.2f} GB/s "
        f"{floor_s.one_copy / ours_s:>9.2f}x {floor_s.memmove / ours_s:>9.2f}x  {aim}",
        flush=True,
    )


def limit(what: str, ours_s: float, limit_s: float, aim: str) -> None:
    """Print a figure that has a limit of its own."""
    print(
        f"{what:<58} {ours_s * 1e3:>9.3f} ms {'':>12} {limit_s / ours_s:>9.2f}x {'':>10}  {aim}", flush=True
    )


def main() -> None:
    """Print all rows."""
    procs = this_host().spawn_procs({"gpus": 8})
    actors: Any = procs.spawn("memory", Memory)
    wait_until_warm()
    owner, reader = actors.slice(gpus=0), actors.slice(gpus=1)
    print(f"{'what':<58} {'ours':>12} {'':>12} {'one copy':>10} {'memmove':>10}  aim")
    for mebibytes in (256, 1024):
        n = mebibytes * MIB
        for mappable in (False, True):
            buffer = owner.make.call_one(n, mappable).get()
            kind = "rdma.empty" if mappable else "torch.empty"
            floor = floors(owner, reader, n)
            row(
                f"rank to rank, {mebibytes} MiB, {kind}, read_into",
                reader.read.call_one(buffer, ROUNDS).get(),
                floor,
                "0.9",
                n,
            )
            if mappable:
                limit(f"zero-copy read of {mebibytes} MiB: map()", best(buffer.map), 1e-3, "1 ms")
            buffer.drop()
            owner.forget.call_one().get()
    small = owner.make.call_one(4096, False).get()
    limit("small read, 4 KiB", min(reader.read.call_one(small, 2000).get() for _ in range(3)), 60e-6, "60 us")
    broadcast(procs, owner, reader)
    published = owner.publish.call_one(200, 2 * MIB).get()
    floor = floors(owner, reader, 400 * MIB)
    row(
        "a model of 200 tensors of 2 MiB, load_into",
        reader.load.call_one(published, 200, 2 * MIB).get(),
        floor,
        "",
        400 * MIB,
    )
    procs.stop().get()
    shutdown_context()


def broadcast(procs: Any, owner: Any, reader: Any) -> None:
    """64 MiB to all 8 ranks, in each of the ways."""
    n = 64 * MIB
    for mappable in (True, False):
        source = owner.make.call_one(n, mappable).get()
        kind = "rdma.empty" if mappable else "torch.empty"

        def once(buffer: RDMABuffer = source) -> None:
            buffer.broadcast_into(procs, "weights").get()

        times(once, 3)  # two segments take turns: both have their pages then
        floor = floors(owner, reader, n).times(1.5)
        taken = times(once, BROADCASTS)
        row(f"64 MiB of {kind} to 8 ranks: broadcast_into(mesh)", min(taken), floor, "1.5 copies' time", n)
        row(f"    the median of {BROADCASTS}", statistics.median(taken), floor, "", n)
        source.drop()


if __name__ == "__main__":
    main()
