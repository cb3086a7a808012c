"""The streams from this process to one other process: made when needed, kept, and reused."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from monarch_nb.exceptions import RDMAError
from monarch_nb.rdma.path import Job, PathUnavailable
from monarch_nb.rdma.paths.tcp.address import INTERFACE_VARIABLE, Address, port_range, this_network
from monarch_nb.rdma.paths.tcp.dial import Unreachable, dial
from monarch_nb.rdma.paths.tcp.handshake import Connection
from monarch_nb.rdma.paths.tcp.questions import Dial, Open
from monarch_nb.rdma.paths.tcp.server import IDLE_S, set_options

if TYPE_CHECKING:
    from monarch_nb.rdma.paths.tcp.path import TcpPath

DIAL_S = 3.0
"""How long all addresses of a process are tried."""
ASK_S = 60.0
"""Time limit for an owner's answer, unless the transfer's own ends before."""
TICK_S = 0.1
"""Interval at which a thread that waits for bytes checks the time limit."""
QUICK_S = 0.5e-3
"""Round trip above which a peer isn't asked in the caller's thread."""


class Stream:
    """A connection on which this process sends requests. One thread uses it at a time; any thread may cut
    it.
    """

    def __init__(self, connection: Connection) -> None:
        self.sock = connection.sock
        self.number = connection.number
        self.last_used = time.monotonic()
        self._tag = 0
        self._closing = threading.Lock()
        set_options(self.sock, TICK_S)

    def tag(self) -> int:
        """Return the number of the next request."""
        self._tag = (self._tag + 1) & 0xFFFFFFFF
        return self._tag

    @property
    def is_fresh(self) -> bool:
        """Whether the owner hasn't closed the stream, and won't soon because it was idle."""
        if time.monotonic() - self.last_used > IDLE_S / 2:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | select.POLLHUP)
        return not poll.poll(0)

    def cut(self) -> None:
        """Shut the connection down, so that a thread that waits for it stops."""
        with self._closing, suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may be using the stream."""
        with self._closing:
            self.sock.close()


class Peer:
    """Another process that owns buffers, with this process' streams to it. Thread-safe."""

    def __init__(self, path: TcpPath) -> None:
        self._path = path
        self._idle: list[Stream] = []
        self._lock = threading.Lock()
        self._reaching = threading.Lock()
        self._known: tuple[list[Address], int, bytes] | None = None
        self._dials_us = False
        self._closed = False
        self.round_trip_s = 1.0
        self.last_used = time.monotonic()

    @property
    def is_quick(self) -> bool:
        """Whether an idle stream exists, and a round trip takes microseconds."""
        return bool(self._idle) and self.round_trip_s < QUICK_S

    def take_stream(self, job: Job) -> Stream:
        """Return a stream that no other thread uses.

        Raises:
            PathUnavailable: if no connection is possible.
            BufferGone: if the owner, or the buffer, is gone.
            TransferTimeout: if the job's time is up.
        """
        self.last_used = time.monotonic()
        stream = self._ready()
        if stream is None:
            with self._reaching:
                stream = Stream(self._reached(job))
        return stream

    def take_another(self, job: Job) -> Stream:
        """Return a further stream, connected in the way that worked for the first one; no other way is tried.

        Raises:
            PathUnavailable: if that way fails.
        """
        stream = self._ready()
        if stream is not None:
            return stream
        with self._reaching:
            if self._known is not None:
                with suppress(Unreachable):
                    return Stream(self._dial(job))
            elif self._dials_us:
                return Stream(self._be_dialled(job, "as before"))
        raise PathUnavailable("no further stream")

    def _ready(self) -> Stream | None:
        while True:
            with self._lock:
                stream = self._idle.pop() if self._idle else None
            if stream is None or stream.is_fresh:
                return stream
            stream.close()

    def give_back_stream(self, stream: Stream) -> None:
        """Return a stream that has no requests in flight to the idle streams."""
        stream.last_used = time.monotonic()
        with self._lock:
            if not self._closed:
                self._idle.append(stream)
                return
        stream.close()

    def tidy(self) -> None:
        """Close streams that weren't used for long."""
        with self._lock:
            old = [s for s in self._idle if not s.is_fresh]
            self._idle = [s for s in self._idle if s not in old]
        for stream in old:
            stream.close()

    def close(self) -> None:
        """Close all idle streams now, and the others when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()

    # --- new streams

    def _reached(self, job: Job) -> Connection:
        if self._known is not None:
            with suppress(Unreachable):  # the owner may have dropped its listener
                return self._dial(job)
        if not self._dials_us:
            self._ask_where(job)
            try:
                return self._dial(job)
            except Unreachable as error:
                tried = str(error)
        else:
            tried = "as before"
        return self._be_dialled(job, tried)

    def _ask_where(self, job: Job) -> None:
        plane = self._path.plane
        question = Open(job.handle, plane.owner.process, this_network())
        found = plane.ask(question, job.remaining_s(ASK_S))
        self._known = (found.addresses, plane.owner.process, found.secret)

    def _dial(self, job: Job) -> Connection:
        assert self._known is not None
        addresses, name, secret = self._known
        try:
            found = dial(
                addresses,
                name,
                secret,
                job.remaining_s(DIAL_S),
                lambda: self._path.closed or job.cancelled.is_set(),
            )
        except Unreachable:
            self._known = None
            raise
        assert found.address is not None
        self._known = ([found.address], name, secret)  # the next stream goes to that address at once
        self.round_trip_s = found.round_trip_s
        return found

    def _be_dialled(self, job: Job, tried: str) -> Connection:
        """Ask an owner that this process can't connect to for a connection in the other direction; return
        it.
        """
        plane, owner = self._path.plane, job.handle.owner
        caller = _Caller()
        try:
            addresses = self._path.listener.open(owner.machine == plane.owner.machine)
            secret = self._path.listener.expect(owner.process, caller.on_connection)
            question = Dial(job.handle, addresses, owner.process, secret)
            number = plane.ask(question, job.remaining_s(ASK_S))
            found = caller.wait_for(number, job.remaining_s(DIAL_S))
        except RDMAError as error:
            if type(error) is not RDMAError:  # the owner is gone, or time is up
                raise
            raise PathUnavailable(_unreachable(job, tried, str(error))) from None
        except OSError as error:
            raise PathUnavailable(_unreachable(job, tried, str(error))) from None
        finally:
            caller.close_others()
        self._dials_us = True
        self.round_trip_s = 1.0
        return found


class _Caller:
    """The connections of one process that calls back: by each of our addresses that was reached. The
    connection that the process names is kept.
    """

    def __init__(self) -> None:
        self._came: dict[int, Connection] = {}
        self._changed = threading.Condition()
        self._over = False

    def on_connection(self, connection: Connection) -> None:
        """Store an accepted connection. Called by the listener."""
        with self._changed:
            self._came[connection.number] = connection
            self._changed.notify_all()
            over = self._over
        if over:
            self.close_others()

    def wait_for(self, number: int, timeout_s: float) -> Connection:
        """Wait for the connection with this number, and return it.

        Raises:
            OSError: if it doesn't arrive in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._came, timeout_s):
                raise Unreachable("it has hung up")
            return self._came.pop(number)

    def close_others(self) -> None:
        """Close all other connections, including those that arrive later."""
        with self._changed:
            self._over = True
            others, self._came = self._came, {}
        for connection in others.values():
            connection.sock.close()


def answer_dial(addresses: Sequence[Address], name: int, secret: bytes) -> Connection:
    """Connect to a process that can't connect to this one.

    Raises:
        RDMAError: if that fails; it names the addresses that were tried.
    """
    try:
        return dial([(host, port) for host, port in addresses], name, secret, DIAL_S)
    except Unreachable as error:
        raise RDMAError(str(error)) from None


def _unreachable(job: Job, tried: str, back: str) -> str:
    return (
        f"no TCP connection to {job.handle.owner}: {tried}; nor from there to here: {back}. Let one "
        f"of the two machines connect to the other on TCP ports {port_range()}, or name the network "
        f"that they share: {INTERFACE_VARIABLE}=eth0"
    )
