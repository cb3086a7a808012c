"""Sends big arguments and results to other machines: the message describes where the bytes are, and the
receiver fetches them by the best path when it decodes the message.

Without this they'd go through both host processes, encrypted. The sender keeps a copy, as of every message,
until all receivers have fetched it or have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from monarch_nb._protocol.events import RanksEnded
from monarch_nb._protocol.registry import Handlers, Sender, handles
from monarch_nb._transport.transport import Transport, TransportClosed
from monarch_nb._wire import codec
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.segment import copy_bytes
from monarch_nb.exceptions import RDMAError
from monarch_nb.rdma.buffer import RDMABuffer, handle_of
from monarch_nb.rdma.data_plane import DataPlane, data_plane
from monarch_nb.rdma.paths import only_encrypted
from monarch_nb.rdma.question import Done, Fetched
from monarch_nb.rdma.segments import allocate

MIN_BYTES = 4 << 20
"""Smaller bodies travel in the message: a fetch has a round trip of its own."""

Receiver = tuple[str, int]
"""A mesh, and a proc id in it."""


class RemoteArguments:
    """The buffers that this process offers to others, with the receivers that haven't fetched them yet.
    Thread-safe.
    """

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self._lock = threading.Lock()
        self._left: dict[int, tuple[RDMABuffer, set[Receiver]]] = {}
        """By key: the buffer, and the receivers that haven't fetched it yet."""
        self._watched: set[str] = set()
        plane.services[Fetched.to] = self.fetched

    def add(self, transport: Transport, buffer: RDMABuffer, receivers: Sequence[int]) -> None:
        """Keep a buffer until every receiver has fetched it or has ended."""
        mesh = transport.mesh_id
        with self._lock:
            self._left[handle_of(buffer).key] = (buffer, {(mesh, proc) for proc in receivers})
            if mesh not in self._watched:
                self._watched.add(mesh)
                transport.event_handlers.append(Handlers(_EndsOf(mesh, self)))
        if transport.ends:
            self._settle(
                handle_of(buffer).key, {(mesh, proc) for proc in receivers if proc in transport.ends}
            )

    def fetched(self, question: Fetched) -> Done:
        """Record that a receiver has fetched the buffer."""
        self._settle(question.handle.key, set(question.by))
        return Done()

    def ended(self, gone: set[Receiver]) -> None:
        """Remove receivers that have ended. Called in the reading thread."""
        for key in list(self._left):
            self._settle(key, gone)

    def _settle(self, key: int, receivers: set[Receiver]) -> None:
        with self._lock:
            found = self._left.get(key)
            if found is None:
                return
            buffer, left = found
            left -= receivers
            if left:
                return
            del self._left[key]
        self.plane.in_background(lambda: self.plane.drop(handle_of(buffer)))

    def __len__(self) -> int:
        return len(self._left)


_remote_arguments: RemoteArguments | None = None
_lock = threading.Lock()


def remote_arguments() -> RemoteArguments:
    """Return this process' `RemoteArguments`."""
    global _remote_arguments
    plane = data_plane()
    with _lock:
        if _remote_arguments is None or _remote_arguments.plane is not plane:
            _remote_arguments = RemoteArguments(plane)
        return _remote_arguments


class _EndsOf:
    """The subscription to ends of processes of one mesh."""

    def __init__(self, mesh: str, arguments: RemoteArguments) -> None:
        self._mesh, self._arguments = mesh, arguments

    @handles(RanksEnded)
    def on_ranks_ended(self, event: RanksEnded, sender: Sender) -> None:
        self._arguments.ended({(self._mesh, end.proc) for end in event.ends})


class RemoteBody:
    """A stand-in for a value in a message: decoding it fetches the buffers, and returns the value."""

    def __init__(self, payload: bytes, buffer: RDMABuffer, sizes: Sequence[int]) -> None:
        self._contents = (payload, buffer, tuple(sizes))

    def __reduce__(self) -> tuple[Any, ...]:
        return fetch, self._contents


def offer(transport: Transport, body: Encoded, receivers: Sequence[int]) -> Encoded:
    """Return a small body that stands for `body`, whose buffers the receivers fetch; `body` itself if it's
    small.
    """
    sizes = [b.nbytes for b in body.buffers]
    if sum(sizes) < MIN_BYTES or only_encrypted():
        return body
    segment = allocate(sum(sizes))
    at = segment.address
    for view in body.buffers:
        copy_bytes(at, view)
        at += view.nbytes
    buffer = RDMABuffer(memoryview(segment))
    remote_arguments().add(transport, buffer, receivers)
    return codec.encode(RemoteBody(body.payload, buffer, sizes))


def join() -> None:
    """Make this process answer questions about its memory, in all of its meshes."""
    data_plane()


def fetch(payload: bytes, buffer: RDMABuffer, sizes: Sequence[int]) -> Any:
    """Fetch the buffers of a body, and return the decoded value. Runs where the message is decoded."""
    plane = data_plane()
    room = memoryview(allocate(sum(sizes)))
    try:
        buffer.read_into(room, timeout=None).get()
    finally:
        plane.in_background(lambda: _notify_fetched(plane, buffer))
    views, at = [], 0
    for size in sizes:
        views.append(room[at : at + size])
        at += size
    return codec.decode(payload, views)


def _notify_fetched(plane: DataPlane, buffer: RDMABuffer) -> None:
    with suppress(RDMAError, TransportClosed):  # the owner has ended, or this process is about to
        plane.ask(Fetched(handle_of(buffer), plane.owner.addresses))
