"""The path over plain TCP, between any two processes of a mesh that can connect in either direction.

The reading or writing side asks for chunks over several streams; the owner's threads serve them
(`server.py`). Chunks go from memory to memory, each with a checksum, and with the owner's word that the
buffer was still there (`wire.py`). The mesh's control plane carries addresses and the secret by which
both sides know each other (`handshake.py`); the bytes themselves are not encrypted.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from monarch_nb.exceptions import PathFailed, RDMAError, TransferTimeout
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import WRITE, Job, Path, PathUnavailable
from monarch_nb.rdma.paths.notice import Notices
from monarch_nb.rdma.paths.tcp.address import num_streams, this_network
from monarch_nb.rdma.paths.tcp.exchange import Exchange
from monarch_nb.rdma.paths.tcp.listener import Listener
from monarch_nb.rdma.paths.tcp.peer import Peer, answer_dial
from monarch_nb.rdma.paths.tcp.questions import NAME, Cut, Dial, Listening, Open
from monarch_nb.rdma.paths.tcp.server import Server
from monarch_nb.rdma.paths.tcp.wire import SMALL_BYTES, Broken
from monarch_nb.rdma.question import Done, Question

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane
    from monarch_nb.rdma.regions import Region

MAX_HELPERS = 64
ASK_S = 10.0
SETTLE_S = 2.0
TIDY_S = 20.0
FORGET_S = 600.0


class TcpPath(Path):
    """The path that moves bytes over TCP streams, which is always available."""

    name = NAME

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane)
        self.listener = Listener()
        self.server = Server(plane)
        self.closed = False
        self._peers: dict[int, Peer] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._tidy_at = 0.0
        self._notices = Notices(plane)

    def refusal(self, handle: Handle, local: Memory) -> str:
        return "the buffer is this process' own" if handle.is_ours else ""

    def is_quick(self, handle: Handle) -> bool:
        peer = self._peers.get(handle.owner.process)
        return peer is not None and peer.is_quick

    # --- the requesting side

    def transfer(self, job: Job) -> None:
        start = time.monotonic()
        peer = self._peer(job.handle)
        exchange = Exchange(job, peer, self._helpers(), num_streams(), lambda: self.closed)
        try:
            self._run(exchange, job)
        except BaseException:
            if job.op == WRITE and exchange.broken and not self.closed:
                with suppress(RDMAError):  # the first error counts
                    self._settle(exchange, job, SETTLE_S)
            raise
        took = time.monotonic() - start
        if job.nbytes <= SMALL_BYTES:
            peer.round_trip_s = (peer.round_trip_s + took) / 2
        self._notices.moved(job, took)

    def _run(self, exchange: Exchange, job: Job) -> None:
        try:
            exchange.run()
            return
        except Broken as error:
            first = str(error)
        self._check_open()
        self._settle(exchange, job, job.remaining_s(ASK_S))  # raises if the owner is gone
        try:
            exchange.run()
        except (Broken, PathUnavailable) as error:
            self._check_open()
            self._settle(exchange, job, job.remaining_s(ASK_S))
            raise PathFailed(f"the connection to {job.handle.owner} broke twice: {first}; {error}") from None

    def _check_open(self) -> None:
        if self.closed:
            raise PathFailed("this process has left its mesh")

    def _settle(self, exchange: Exchange, job: Job, timeout_s: float) -> None:
        """Make sure that broken streams deliver nothing more, and that the owner still runs."""
        try:
            self.plane.ask(Cut(job.handle, list(exchange.broken)), timeout_s)
        except TransferTimeout:
            job.check()
            raise PathFailed(f"the connection to {job.handle.owner} broke, and it doesn't answer") from None

    def _peer(self, handle: Handle) -> Peer:
        with self._lock:
            self._check_open()
            self._tidy()
            return self._peers.get(handle.owner.process) or self._peers.setdefault(
                handle.owner.process, Peer(self)
            )

    def _tidy(self) -> None:
        """Close peers and streams that weren't used for long; does so at intervals of `TIDY_S`."""
        now = time.monotonic()
        if now < self._tidy_at:
            return
        self._tidy_at = now + TIDY_S
        for process, peer in list(self._peers.items()):
            peer.tidy()
            if now - peer.last_used > FORGET_S:
                self._peers.pop(process).close()

    def _helpers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_HELPERS, "monarch_nb-rdma-tcp")
            return self._pool

    # --- the owner's side

    def answer(self, question: Question[object], region: Region) -> Listening | int | Done:
        match question:
            case Open():
                return self._open(question)
            case Dial(addresses=addresses, name=name, secret=secret):
                connection = answer_dial(addresses, name, secret)
                self.server.on_connection(connection)
                return connection.number
            case Cut(streams=streams):
                self.server.cut(streams)
                return Done()
        raise RDMAError(f"tcp doesn't know {type(question).__name__}")

    def _open(self, question: Open) -> Listening:
        addresses = self.listener.open(question.network == this_network())
        return Listening(addresses, self.listener.expect(question.process, self.server.on_connection))

    def forget(self, region: Region) -> None:
        region.made[NAME].wait_until_unused()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            peers = list(self._peers.values())
        self.listener.close()
        for peer in peers:
            peer.close()
        self.server.close()
        if self._pool is not None:
            self._pool.shutdown()
