"""The tcp path beside plain sockets: two processes of this machine over loopback, as many streams, as many
bytes, one after the other in one run.

Plain is the floor: `sendall` and `recv_into` by a thread for each stream, no requests, no checksum, nobody
who validates. Usage:

    python tests/benchmarks/bench_rdma_tcp.py [MiB] [rounds]
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "rdma"))

import numpy
from two_planes import TwoPlanes

from monarch_nb.rdma.data_plane import DataPlane
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.memory import memory_of
from monarch_nb.rdma.path import Job

PIECE_BYTES = 1 << 20


def give(plane: DataPlane, nbytes: int) -> Handle:
    """Over there: register that many bytes."""
    data = numpy.random.default_rng(0).integers(0, 256, nbytes, numpy.uint8)
    return plane.register(memory_of(data))


def plain_server(plane: DataPlane, num_streams: int, nbytes: int) -> int:
    """Over there: send the bytes to each round of as many connections; returns the port."""
    import numpy

    data = memoryview(numpy.random.default_rng(0).integers(0, 256, nbytes, numpy.uint8))
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(sock: socket.socket, part: memoryview) -> None:
        with sock:
            while sock.recv(1):
                for at in range(0, len(part), PIECE_BYTES):
                    sock.sendall(part[at : at + PIECE_BYTES])

    def run() -> None:
        share = nbytes // num_streams
        with listening:
            for i in range(num_streams):
                sock, _ = listening.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(
                    target=serve, args=(sock, data[i * share : (i + 1) * share]), daemon=True
                ).start()

    threading.Thread(target=run, daemon=True).start()
    return int(listening.getsockname()[1])


class Plain:
    """This side of plain sockets."""

    def __init__(self, port: int, num_streams: int, into: memoryview) -> None:
        self._socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(num_streams)]
        share = len(into) // num_streams
        self._parts = [into[i * share : (i + 1) * share] for i in range(num_streams)]

    def read(self) -> None:
        threads = [
            threading.Thread(target=self._one, args=pair)
            for pair in zip(self._socks, self._parts, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def _one(sock: socket.socket, part: memoryview) -> None:
        sock.send(b"!")
        at = 0
        while at < len(part):
            at += sock.recv_into(part[at : at + PIECE_BYTES])

    def close(self) -> None:
        for sock in self._socks:
            sock.close()


def seconds(function: Callable[[], Any]) -> float:
    """Return what a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(two: TwoPlanes, handle: Handle, into: Any, num_streams: int, rounds: int) -> None:
    """Print one line."""
    os.environ["MONARCH_NB_RDMA_STREAMS"] = str(num_streams)
    plain = Plain(two.far(plain_server, num_streams, handle.nbytes), num_streams, memoryview(into))
    local = memory_of(into)

    def ours(op: str) -> None:
        two.plane.submit([Job(op, handle, local)], "tcp").get(60)  # type: ignore[arg-type]

    ways: dict[str, Callable[[], None]] = {
        "plain": plain.read,
        "read": lambda: ours("read"),
        "write": lambda: ours("write"),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            spent = seconds(way)
            if i:  # the first warms up
                took[name].append(spent)
    plain.close()
    rate = {name: handle.nbytes / statistics.median(times) / 1e9 for name, times in took.items()}
    print(
        f"{num_streams} streams: plain {rate['plain']:.2f} GB/s   read {rate['read']:.2f} "
        f"({rate['read'] / rate['plain']:.2f} of it)   write {rate['write']:.2f} "
        f"({rate['write'] / rate['plain']:.2f} of it)",
        flush=True,
    )


def plain_echo(plane: DataPlane, nbytes: int) -> int:
    """Over there: answer each byte with that many; returns the port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        sock, _ = listening.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with listening, sock:
            while sock.recv(1):
                sock.sendall(bytes(nbytes))

    threading.Thread(target=run, daemon=True).start()
    return int(listening.getsockname()[1])


def latency(two: TwoPlanes, handle: Handle, into: Any, num: int = 1000) -> None:
    """Print what 4 KiB take."""
    part, local = handle.part(slice(0, 4096)), memory_of(into[:4096])
    with socket.create_connection(("127.0.0.1", two.far(plain_echo, 4096))) as sock:

        def plain() -> None:
            sock.send(b"!")
            sock.recv_into(into, 4096, socket.MSG_WAITALL)

        floor = [seconds(plain) for _ in range(num)]
    times = [seconds(lambda: two.plane.submit([Job("read", part, local)], "tcp").get(60)) for _ in range(num)]
    print(
        f"4 KiB: plain {statistics.median(floor) * 1e6:.0f} us   read "
        f"{statistics.median(times) * 1e6:.0f} us, 99 in 100 within "
        f"{sorted(times)[num * 99 // 100] * 1e6:.0f} us"
    )


def main() -> None:
    nbytes = int((sys.argv[1:] or ["512"])[0]) << 20
    rounds = int((sys.argv[2:] or ["7"])[0])
    with TwoPlanes() as two:
        print(
            f"{nbytes >> 20} MiB over loopback, {len(os.sched_getaffinity(0))} processors, medians of "
            f"{rounds}"
        )
        handle = two.far(give, nbytes)
        into = numpy.ones(nbytes, numpy.uint8)
        for num_streams in (1, 2, 4):
            compare(two, handle, into, num_streams, rounds)
        latency(two, handle, into)


if __name__ == "__main__":
    main()
