"""The floor: what sockets, forks and memory of this machine cost with nothing on top."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
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


_HEADER = struct.Struct("<IIQQ")
"""What a message carries: operation, argument, bytes that follow, a value."""
_NOOP = 0
_LINGER_S = 10.0
_PR_SET_PDEATHSIG = 1


class RawZmq:
    """A ROUTER here, a DEALER in each of some processes that answer what they get: the least that a call
    costs by ZeroMQ and Python.

    The same floor as in comparisons with other systems: each rank is an interpreter of its own, and a message
    is a header that both ends pack and unpack.
    """

    def __init__(self, num: int) -> None:
        self._directory = tempfile.mkdtemp()
        path = f"ipc://{self._directory}/z"
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set_hwm(0)
        self._router.bind(path)
        self._ranks = [subprocess.Popen([sys.executable, __file__, path, str(i)]) for i in range(num)]
        self.pids = [rank.pid for rank in self._ranks]
        self._names = sorted(self._router.recv_multipart()[0] for _ in range(num))

    def _send(self, name: bytes) -> None:
        self._router.send_multipart((name, _HEADER.pack(_NOOP, 0, 0, 0)))

    def _receive(self) -> int:
        self._router.recv()
        operation, _, _, _ = _HEADER.unpack(self._router.recv())
        return int(operation)

    def call_one(self) -> None:
        self._send(self._names[0])
        self._receive()

    def call_all(self) -> None:
        for name in self._names:
            self._send(name)
        for _ in self._names:
            self._receive()

    def pipelined(self, num: int, window: int = 1000) -> float:
        """Return the seconds for `num` round trips with `window` under way."""
        start = time.perf_counter()
        for _ in range(num // window):
            for _ in range(window):
                self._send(self._names[0])
            for _ in range(window):
                self._receive()
        return time.perf_counter() - start

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait(_LINGER_S)
        self._context.destroy(0)
        shutil.rmtree(self._directory, ignore_errors=True)


class RawUnix:
    """A unix socket that keeps the bounds of messages to each of some processes that answer what they get:
    the least that a call costs by sockets and Python.
    """

    def __init__(self, num: int) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(num)]
        self._sockets = [ours for ours, _ in pairs]
        self._ranks = []
        self._epoll = select.epoll()
        for ours, theirs in pairs:
            fd = theirs.fileno()
            self._ranks.append(subprocess.Popen([sys.executable, __file__, str(fd)], pass_fds=[fd]))
            theirs.close()
            ours.recv(_HEADER.size)
            self._epoll.register(ours.fileno(), select.EPOLLIN)
        self.pids = [rank.pid for rank in self._ranks]

    def call_one(self) -> None:
        self._sockets[0].send(_HEADER.pack(_NOOP, 0, 0, 0))
        self._epoll.poll()
        _HEADER.unpack(self._sockets[0].recv(_HEADER.size))

    def call_all(self) -> None:
        for each in self._sockets:
            each.send(_HEADER.pack(_NOOP, 0, 0, 0))
        missing = len(self._sockets)
        while missing:
            for fd, _ in self._epoll.poll():
                _HEADER.unpack(os.read(fd, _HEADER.size))
                missing -= 1

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        for rank in self._ranks:
            rank.wait(_LINGER_S)
        self._epoll.close()


def _serve_unix(fd: int) -> None:
    """Be a rank of `RawUnix`, until its other end closes."""
    connection = socket.socket(fileno=fd)
    connection.send(_HEADER.pack(_NOOP, 0, 0, 0))
    while message := connection.recv(_HEADER.size):
        operation, _, _, _ = _HEADER.unpack(message)
        connection.send(_HEADER.pack(operation, 0, 0, 0))


def end_with_parent() -> None:
    """Have the kernel end this process when the one that has started it ends, however that does."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _serve(path: str, index: str) -> None:
    """Be a rank of `RawZmq`, until killed."""
    end_with_parent()
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.set_hwm(0)
    dealer.setsockopt(zmq.IDENTITY, f"r{index}".encode())
    dealer.connect(path)
    dealer.send(_HEADER.pack(_NOOP, 0, 0, 0))
    while True:
        operation, _, _, _ = _HEADER.unpack(dealer.recv())
        dealer.send(_HEADER.pack(operation, 0, 0, 0))


def fork_with_torch(num: int) -> float:
    """Return the seconds until `num` forks of a fresh interpreter that imports torch have answered on a
    pipe.
    """
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


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _serve(sys.argv[1], sys.argv[2])
    else:
        _serve_unix(int(sys.argv[1]))
