"""One transfer over one or several streams.

It's cut into chunks; each stream takes the next when it has room, so that a slow one doesn't hold up the
others. A stream always has several requests under way. When one fails, all are cut, and whoever asked is told
only when no thread touches the memory any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from monarch_nb.exceptions import PathFailed, RDMAError
from monarch_nb.rdma.layout import Piece
from monarch_nb.rdma.path import READ, Job, PathUnavailable
from monarch_nb.rdma.paths.tcp import wire as wire
from monarch_nb.rdma.paths.tcp.peer import TICK_S, Peer, Stream

CHUNK_BYTES = 8 * wire.BLOCK_BYTES
"""Bytes of one request of a large transfer. They should be many: Python's work in between finds a cold
cache.
"""
SMALLEST_BYTES = wire.BLOCK_BYTES // 4
PARALLEL_BYTES = 2 << 20
"""Size from which several streams are faster."""
AHEAD_BYTES = CHUNK_BYTES + 1
"""A stream sends further requests while fewer bytes are under way: two chunks, or many small ones."""
AHEAD_REQUEST_BYTES = 24 << 10
"""Limit of requests under way, which must not fill the owner's receive buffer: the owner doesn't read while
it sends.
"""
STALL_S = 15.0
"""Time without a byte after which the connection counts as broken."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a transfer, moved by one request: stretches of the owner's region, and of local memory."""

    there: Sequence[wire.Stretch]
    here: Sequence[wire.Stretch]
    nbytes: int

    @property
    def request_bytes(self) -> int:
        """The approximate length of the chunk's request."""
        return 16 * len(self.there) + 48


def chunks(pieces: Sequence[Piece], chunk_bytes: int) -> list[Chunk]:
    """Return pieces as chunks: long pieces are split, short ones joined.

    >>> [c.nbytes for c in chunks([Piece(0, 0, 5), Piece(8, 5, 2)], 1 << 20)]
    [7]
    """
    found: list[Chunk] = []
    there: list[wire.Stretch] = []
    here: list[wire.Stretch] = []
    joined = 0

    def end() -> None:
        nonlocal there, here, joined
        if there:
            found.append(Chunk(there, here, joined))
        there, here, joined = [], [], 0

    for far, near, nbytes in pieces:
        if nbytes > wire.SMALL_BYTES:
            for at in range(0, nbytes, chunk_bytes):
                n = min(chunk_bytes, nbytes - at)
                found.append(Chunk([(far + at, n)], [(near + at, n)], n))
            continue
        if joined + nbytes > wire.JOINED_BYTES or len(there) == wire.MAX_STRETCHES:
            end()
        there.append((far, nbytes))
        here.append((near, nbytes))
        joined += nbytes
    end()
    return found


class Exchange:
    """The mover of one job's bytes."""

    def __init__(
        self, job: Job, peer: Peer, pool: ThreadPoolExecutor, num_streams: int, is_closed: Callable[[], bool]
    ) -> None:
        self._job = job
        self._peer = peer
        self._pool = pool
        self._num_streams = num_streams
        self._is_closed = is_closed
        self._memory = job.local.bytes_at(0, job.local.span_bytes)
        self._op = wire.OP_READ if job.op == READ else wire.OP_WRITE
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._over = False
        self._todo: deque[Chunk] = deque(chunks(job.pieces(), self._chunk_bytes()))
        self._missing = job.nbytes
        self._streams: set[Stream] = set()
        self._error: BaseException | None = None
        self.broken: list[int] = []
        """Streams that were cut: the owner may still be reading data from them."""

    def _chunk_bytes(self) -> int:
        """Return a chunk size that keeps all streams busy."""
        share = self._job.nbytes // (8 * self._num_streams)
        return max(1, min(CHUNK_BYTES, share) // SMALLEST_BYTES) * SMALLEST_BYTES

    def run(self) -> None:
        """Move the remaining bytes; may be called again after a `Broken`.

        Raises:
            Broken: if a connection broke; `broken` says which were in use.
            BufferGone, TransferTimeout, RDMAError: as of `Path.transfer`.
        """
        self._error, self._over = None, False
        self.broken = []
        stream = self._peer.take_stream(self._job)
        wanted = self._num_streams if self._job.nbytes >= PARALLEL_BYTES else 1
        helpers = [self._pool.submit(self._help) for _ in range(min(wanted, len(self._todo)) - 1)]
        try:
            self._work(stream)
        finally:
            self._end_helpers(helpers)
        if self._error is not None:
            raise self._error
        if self._missing:
            raise wire.Broken("not all came")

    def _end_helpers(self, helpers: Sequence[Future[None]]) -> None:
        """Wait until no thread accesses the memory. A helper that has no stream yet isn't waited for."""
        for helper in helpers:
            helper.cancel()
        with self._lock:
            self._over = True
            self._left.wait_for(lambda: not self._streams)

    def _help(self) -> None:
        with suppress(PathUnavailable, RDMAError):  # the other streams continue
            self._work(self._peer.take_another(self._job))

    def _work(self, stream: Stream) -> None:
        """Use a stream until no chunk is left."""
        with self._lock:
            if not self._over:
                self._streams.add(stream)
        if stream not in self._streams:
            self._peer.give_back_stream(stream)
            return
        try:
            self._drive(stream)
        except BaseException as error:
            self._fail(error)
            self.broken.append(stream.number)
            stream.close()
        else:
            self._peer.give_back_stream(stream)
        finally:
            with self._lock:
                self._streams.discard(stream)
                self._left.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
            streams = list(self._streams)
        for stream in streams:
            stream.cut()

    def _drive(self, stream: Stream) -> None:
        under_way: deque[tuple[Chunk, wire.Request]] = deque()
        try:
            while True:
                while (chunk := self._next(under_way)) is not None:
                    request = wire.Request(
                        self._op, stream.tag(), self._job.handle.key, self._job.handle.slot, chunk.there
                    )
                    under_way.append((chunk, request))
                    self._send_request(stream, chunk, request)
                if not under_way:
                    return
                self._finish(stream, *under_way[0])
                chunk, _ = under_way.popleft()
                self._moved(chunk.nbytes)
        finally:
            with self._lock:
                self._todo.extendleft(chunk for chunk, _ in under_way)

    def _next(self, under_way: Sequence[tuple[Chunk, wire.Request]]) -> Chunk | None:
        """Return the next chunk, or None if enough chunks are in flight or none is left."""
        if under_way:
            if sum(c.nbytes for c, _ in under_way) >= AHEAD_BYTES:
                return None
            if sum(c.request_bytes for c, _ in under_way) >= AHEAD_REQUEST_BYTES:
                return None
        with self._lock:
            if self._error is not None:
                raise wire.Broken("another stream has failed")
            return self._todo.popleft() if self._todo else None

    def _moved(self, nbytes: int) -> None:
        with self._lock:
            self._missing -= nbytes
            self._job.moved(nbytes)

    def _wait(self, idle: int) -> None:
        """See `wire.Wait`."""
        self._job.check()
        if self._is_closed():
            raise PathFailed("this process has left its mesh")
        if idle * TICK_S > STALL_S:
            raise wire.Broken(f"no byte in {STALL_S:g} s")

    # --- one chunk

    def _send_request(self, stream: Stream, chunk: Chunk, request: wire.Request) -> None:
        head = request.encode()
        if self._op == wire.OP_READ:
            wire.send_all(stream.sock, [head], self._wait)
        elif request.is_copied:
            wire.send_copied(
                stream.sock, head, wire.gathered(self._memory, chunk.here), request.seed, self._wait
            )
        else:
            wire.send_chunk(stream.sock, head, self._place(chunk), request.seed, self._wait)

    def _finish(self, stream: Stream, chunk: Chunk, request: wire.Request) -> None:
        try:
            status, why = wire.receive_answer(stream.sock, request, self._wait)
            if status == wire.OK and self._op == wire.OP_READ:
                status = self._receive(stream, chunk, request)
        except wire.Corrupt as error:
            raise self._corrupt(str(error)) from None
        if status == wire.GONE:
            raise self._job.gone()
        if status == wire.CORRUPT:
            raise self._corrupt("the bytes")
        if status != wire.OK:
            raise PathFailed(f"{self._job.handle} refuses the {self._job.op}: {why}")

    def _receive(self, stream: Stream, chunk: Chunk, request: wire.Request) -> int:
        if not request.is_copied:
            return wire.receive_chunk(stream.sock, self._place(chunk), request.seed, self._wait)
        data, status = wire.receive_copied(stream.sock, chunk.nbytes, request.seed, self._wait)
        wire.scatter(data, self._memory, chunk.here)
        return status

    def _place(self, chunk: Chunk) -> memoryview:
        at, nbytes = chunk.here[0]
        return self._memory[at : at + nbytes]

    def _corrupt(self, what: str) -> PathFailed:
        return PathFailed(
            f"{what} of {self._job.handle} came with a wrong checksum by tcp: changed on the way by a "
            "network card, a switch or memory, or the memory was written to while it was moved. "
            "Don't use what was moved; try again when nobody writes"
        )
