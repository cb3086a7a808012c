"""The owner's side of the tcp path: a thread for each stream, which executes requests and checks each before
and after.

A chunk that is under way on a region is noted there (`Uses`), so that a drop waits until nobody touches the
memory any more.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from monarch_nb.rdma.paths.tcp import wire as wire
from monarch_nb.rdma.paths.tcp.handshake import Connection
from monarch_nb.rdma.paths.tcp.questions import NAME
from monarch_nb.rdma.paths.tcp.reach import Reach

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane
    from monarch_nb.rdma.memory import Memory
    from monarch_nb.rdma.regions import Region

IDLE_S = 60
"""Time without requests after which a stream is closed."""
NEAR_BUFFER_BYTES = 1 << 20
"""Socket buffers between processes of one machine: small enough that what is on its way stays in the
processor's cache (a fifth more bytes a second on two and more streams), large enough that one side fills
while the other sums up. Between machines the kernel finds out itself what the network needs.
"""
DROP_S = 1.0
"""How long a drop waits for chunks under way; then their streams are cut."""


class Refused(Exception):
    """The error of a request that is refused."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text)
        self.status = status


class Uses:
    """The streams that have a chunk of one region under way."""

    def __init__(self) -> None:
        self._busy: set[Serving] = set()
        self._changed = threading.Condition()

    def begin_use(self, serving: Serving) -> None:
        """Record that a stream has a chunk in flight."""
        with self._changed:
            self._busy.add(serving)

    def end_use(self, serving: Serving) -> None:
        """Record that a stream has no chunk in flight any more."""
        with self._changed:
            self._busy.discard(serving)
            self._changed.notify_all()

    def wait_until_unused(self) -> None:
        """Wait until no chunk is in flight; disconnect streams that take too long. The caller prevents new
        ones.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._busy, DROP_S):
                for serving in self._busy:
                    serving.cut()
                self._changed.wait_for(lambda: not self._busy)


class Server:
    """The server of all streams on which other processes send requests to this one."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self._serving: dict[int, Serving] = {}
        self._lock = threading.Lock()
        self._closed = False

    def on_connection(self, connection: Connection) -> None:
        """Serve a stream, in a thread of its own, until it ends."""
        serving = Serving(self, connection)
        with self._lock:
            if self._closed:
                connection.sock.close()
                return
            self._serving[connection.number] = serving
            serving.thread.start()

    def gone(self, serving: Serving) -> None:
        """Forget a stream that has ended."""
        with self._lock:
            self._serving.pop(serving.number, None)

    def cut(self, numbers: Iterable[int]) -> None:
        """Disconnect streams; when this returns, they access no memory any more."""
        with self._lock:
            found = [s for s in (self._serving.get(n) for n in numbers) if s is not None]
        for serving in found:
            serving.cut()
        for serving in found:
            serving.thread.join()

    @property
    def num_streams(self) -> int:
        """The number of open streams."""
        return len(self._serving)

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            self._closed = True
        self.cut(list(self._serving))


class Serving:
    """One stream, with the thread that serves it."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._sock = connection.sock
        self.number = connection.number
        self.thread = threading.Thread(target=self._run, name="monarch_nb-rdma-tcp-serve", daemon=True)
        self._reach = Reach()
        self._idle = False
        self._closing = threading.Lock()

    def cut(self) -> None:
        """Make the thread end soon, even while it waits."""
        with self._closing, contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        set_options(self._sock, IDLE_S)
        try:
            while True:
                self._idle = True
                request = wire.receive_request(self._sock, self._wait)
                self._idle = False
                self._do(request)
        except (OSError, wire.Corrupt):  # the other side asks for the stream's error
            pass
        finally:
            self._server.gone(self)
            with self._closing:
                self._sock.close()

    def _wait(self, idle: int) -> None:
        raise wire.Broken("no request arrived for a while" if self._idle else "the other side has stopped")

    def _do(self, request: wire.Request) -> None:
        try:
            region, uses = self._open_region(request)
            try:
                act = self._read if request.op == wire.OP_READ else self._write
                act(request, region.memory)
            finally:
                uses.end_use(self)
        except Refused as refused:
            if request.op == wire.OP_WRITE:
                wire.skip(self._sock, request.nbytes, self._wait)
            wire.send_all(
                self._sock, [wire.encode_answer(request.tag, refused.status, 0, str(refused))], self._wait
            )

    def _open_region(self, request: wire.Request) -> tuple[Region, Uses]:
        """Validate a request, and keep its region from being dropped until `Uses.end_use`."""
        if request.nbytes > wire.MAX_CHUNK_BYTES:
            raise wire.Broken("a chunk is too long")
        region = self._server.plane.regions.find(request.key)
        if region is None:
            raise Refused(wire.GONE)
        with region.lock:
            if not self._holds(request):
                raise Refused(wire.GONE)
            _check(request, region)
            uses: Uses | None = region.made.get(NAME)
            if uses is None:
                uses = region.made[NAME] = Uses()
            uses.begin_use(self)
        return region, uses

    def _holds(self, request: wire.Request) -> bool:
        return self._server.plane.regions.table.holds(request.slot, request.key)

    def _status(self, request: wire.Request) -> int:
        return wire.OK if self._holds(request) else wire.GONE

    # --- reads

    def _read(self, request: wire.Request, memory: Memory) -> None:
        head = wire.encode_answer(request.tag, wire.OK, request.nbytes)
        with _gpu_may_refuse():
            data = self._reach.read(memory, request)
        if request.is_copied:
            wire.send_copied(self._sock, head, data, request.seed, self._wait, self._status(request))
        else:
            wire.send_chunk(self._sock, head, data, request.seed, self._wait, lambda: self._status(request))

    # --- writes

    def _write(self, request: wire.Request, memory: Memory) -> None:
        with _gpu_may_refuse():
            data = self._reach.place(memory, request)
        text = ""
        try:
            wire.receive_chunk(self._sock, data, request.seed, self._wait)
            self._reach.put(memory, request, data)
            status = self._status(request)
        except wire.Corrupt:
            status = wire.CORRUPT
        except RuntimeError as error:
            status, text = wire.REFUSED, f"its GPU: {error}"
        wire.send_all(self._sock, [wire.encode_answer(request.tag, status, 0, text)], self._wait)


@contextlib.contextmanager
def _gpu_may_refuse() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Refused(wire.REFUSED, f"its GPU: {error}") from None


def _check(request: wire.Request, region: Region) -> None:
    memory = region.memory
    if request.op == wire.OP_WRITE and memory.read_only:
        raise Refused(wire.REFUSED, "it's read-only")
    for at, n in request.stretches:
        if not n or at + n > memory.span_bytes:
            raise Refused(wire.REFUSED, f"bytes {at:,} to {at + n:,} are none of its {memory.span_bytes:,}")


def set_options(sock: socket.socket, stall_s: float) -> None:
    """Set the options that both sides need on a stream: no delay, and `BlockingIOError` when no bytes move
    for `stall_s` seconds.
    """
    if _is_near(sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NEAR_BUFFER_BYTES)
    seconds = int(stall_s)
    limit = struct.pack("ll", seconds, int((stall_s - seconds) * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_near(sock: socket.socket) -> bool:
    """Return whether both ends have the same address, and so are on one machine."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # it has ended, which its user will be told
        return False
