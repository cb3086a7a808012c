"""The floor: what sockets, forks and memory of this machine cost with nothing on top."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable

import zmq


def median_us(function: Callable[[], object], num: int, warm: int = 50) -> float:
    """Return the median time of a call in microseconds."""
    for _ in range(warm):
        function()
    times = []
    for _ in range(num):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


class RawZmq:
    """A ROUTER here, a DEALER in each of some forked processes that send back what they get."""

    def __init__(self, num: int) -> None:
        self._directory = tempfile.mkdtemp()
        path = f"ipc://{self._directory}/z"
        self.pids = [self._fork(path, i) for i in range(num)]
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set_hwm(0)
        self._router.bind(path)
        self._names = sorted(self._router.recv_multipart()[0] for _ in range(num))

    @staticmethod
    def _fork(path: str, index: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        dealer = zmq.Context().socket(zmq.DEALER)
        dealer.set_hwm(0)
        dealer.setsockopt(zmq.IDENTITY, b"r%d" % index)
        dealer.connect(path)
        dealer.send(b"up")
        while True:
            dealer.send(dealer.recv())

    def call_one(self) -> None:
        self._router.send_multipart([self._names[0], b"noop"])
        self._router.recv_multipart()

    def call_all(self) -> None:
        for name in self._names:
            self._router.send_multipart([name, b"noop"])
        for _ in self._names:
            self._router.recv_multipart()

    def pipelined(self, num: int, window: int = 1000) -> float:
        """Return the seconds for `num` round trips with `window` under way."""
        start = time.perf_counter()
        for _ in range(num // window):
            for _ in range(window):
                self._router.send_multipart([self._names[0], b"noop"])
            for _ in range(window):
                self._router.recv_multipart()
        return time.perf_counter() - start

    def close(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._context.destroy(0)


def fork_with_torch(num: int) -> float:
    """Return the seconds until `num` forks of a fresh interpreter that imports torch have answered on a pipe."""
    import subprocess
    import sys

    code = (
        "import os, sys, torch\n"
        f"for i in range({num}):\n"
        "    if os.fork() == 0:\n"
        "        torch.ones(1).sum(); os.write(1, b'x'); sys.stdin.read(); os._exit(0)\n"
        "sys.stdin.read()\n"
    )
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    got = 0
    while got < num:
        got += len(os.read(process.stdout.fileno(), num))
    seconds = time.perf_counter() - start
    process.communicate()
    return seconds


def memory_copy_ms(num_bytes: int) -> float:
    """Return the median time of one single-threaded copy between warm pages, in milliseconds."""
    import ctypes

    source, target = bytearray(num_bytes), bytearray(num_bytes)
    a = ctypes.addressof(ctypes.c_char.from_buffer(source))
    b = ctypes.addressof(ctypes.c_char.from_buffer(target))
    return median_us(lambda: ctypes.memmove(b, a, num_bytes), 20, warm=3) / 1e3


def killed_child_ms() -> float:
    """Return the time from SIGKILL to the end of a child being known, in milliseconds."""
    import select

    times = []
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        fd = os.pidfd_open(pid)
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        select.select([fd], [], [])
        times.append(time.perf_counter() - start)
        os.waitpid(pid, 0)
        os.close(fd)
    return statistics.median(times) * 1e3
