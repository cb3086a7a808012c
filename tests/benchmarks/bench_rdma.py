"""The data plane beside a plain copy in memory, in one run: `python tests/benchmarks/bench_rdma.py`.

The floor of a read is a copy of as many bytes from shared memory by one `memmove` in this process, warm on both sides. Each figure is measured in
turn with its floor; the best of some rounds counts, for both.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch

from monarch_nb.actor import Actor, endpoint, shutdown_context, this_host
from monarch_nb.rdma import Published, RDMABuffer, empty, load_into, publish

MIB = 1 << 20
ROUNDS = 7


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
    def floor(self, num_bytes: int, rounds: int) -> float:
        return copy_s(num_bytes, rounds)

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


def best(function: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the least time of a call in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


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


def row(what: str, ours_s: float, floor_s: float, aim: str, num_bytes: int = 0) -> None:
    """Print a figure, its floor, and the ratio of their speeds."""
    speed = f"{num_bytes / ours_s / 1e9:>8.2f} GB/s {num_bytes / floor_s / 1e9:>8.2f} GB/s" if num_bytes else " " * 27
    print(f"{what:<58} {ours_s * 1e3:>10.3f} ms {speed} {floor_s / ours_s:>6.2f}x  {aim}", flush=True)


def main() -> None:
    """Print all rows."""
    procs = this_host().spawn_procs({"gpus": 8})
    actors: Any = procs.spawn("memory", Memory)
    owner, reader = actors.slice(gpus=0), actors.slice(gpus=1)
    print(f"{'what':<58} {'ours':>13} {'ours':>13} {'one copy':>13} {'speed':>7}  aim")
    for mebibytes in (256, 1024):
        n = mebibytes * MIB
        for mappable in (False, True):
            buffer = owner.make.call_one(n, mappable).get()
            floor = reader.floor.call_one(n, ROUNDS).get()
            kind = "rdma.empty" if mappable else "torch.empty"
            row(f"rank to rank, {mebibytes} MiB, {kind}, read_into", reader.read.call_one(buffer, ROUNDS).get(), floor, "0.9", n)
            if mappable:
                row(f"zero-copy read of {mebibytes} MiB: map()", best(buffer.map), 1e-3, "1 ms")
            buffer.drop()
            owner.forget.call_one().get()
    small = owner.make.call_one(4096, False).get()
    row("small read, 4 KiB", min(reader.read.call_one(small, 2000).get() for _ in range(3)), 60e-6, "60 us")
    broadcast(procs, owner)
    published = owner.publish.call_one(200, 2 * MIB).get()
    floor = reader.floor.call_one(400 * MIB, ROUNDS).get()
    row("a model of 200 tensors of 2 MiB, load_into", reader.load.call_one(published, 200, 2 * MIB).get(), floor, "", 400 * MIB)
    procs.stop().get()
    shutdown_context()


def broadcast(procs: Any, owner: Any) -> None:
    """64 MiB to all 8 ranks, in each of the ways."""
    n = 64 * MIB
    for mappable in (True, False):
        source = owner.make.call_one(n, mappable).get()
        kind = "rdma.empty" if mappable else "torch.empty"

        def once(buffer: RDMABuffer = source) -> None:
            buffer.broadcast_into(procs, "weights").get()

        once()
        floor = owner.floor.call_one(n, ROUNDS).get()
        row(f"64 MiB of {kind} to 8 ranks: broadcast_into(mesh)", best(once, ROUNDS), 1.5 * floor, "1.5 copies' time", n)
        source.drop()


if __name__ == "__main__":
    main()
