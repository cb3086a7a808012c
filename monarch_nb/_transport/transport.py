"""The transport: one process' sockets, its routes to other processes, and the dispatch of arrived
messages.
"""

from __future__ import annotations

import itertools
import os
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from monarch_nb._protocol.base import NO_FIELDS, Event, Request, decode, encode
from monarch_nb._protocol.events import RanksEnded, RanksRevived
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.registry import Handlers, Sender
from monarch_nb._transport.context import call_context
from monarch_nb._transport.data_plane import remote_arguments
from monarch_nb._transport.pending import Body, CallTimes, Pending, Reply, Unread
from monarch_nb._transport.reader import Reader
from monarch_nb._wire import address, mapped_bytes, segment
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.local_sockets import Joiner, LocalReceiver, LocalSender
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb._wire.message import Message
from monarch_nb.exceptions import MeshEnded, TransportClosed

__all__ = ["Receiver", "Transport", "TransportClosed"]

T = TypeVar("T")

Receiver = tuple[int, int]
"""A proc id and the slot (position in the sending slice) that it has in this message."""

LINGER_S = 2.0
_NOTHING = Encoded(b"")
_INODE = struct.Struct("<Q")


class Transport:
    """The sender and receiver of messages of one process. All methods may be called from any thread, unless
    they say otherwise.

    Args:
        me: this process' proc id.
        directory: where the processes of this machine have their sockets.

    Set the hooks (`on_call` ...) before `start`: messages may be waiting already.
    """

    def __init__(self, me: int, directory: str) -> None:
        self.me = me
        self.host = address.host_of(me)
        self.directory = directory
        self.mesh_id = ""
        """Id of the mesh, shared by all of its processes."""
        self.mesh: MeshAddress | None = None
        """Address of that mesh, which is sent with handles."""
        self.is_guest = False
        """In a rank: whether this is a transport in another mesh, whose handles the rank was given."""
        self.ends: dict[int, RankExit] = {}
        """Ends of processes, as far as known."""
        self.on_call: Callable[[Message], Any] = _refuse
        """Handles CALL messages, in the reading thread; returns a waiter to wake, or None."""
        self.services: dict[bytes, Callable[[Message], None]] = {}
        """Handlers of CALLs to this process itself, by name, in the reading thread; they precede
        `on_call`.
        """
        self.event_handlers: list[Handlers] = []
        """Handle events, in the reading thread."""
        self.on_output: Callable[[Message], None] = lambda _message: None
        self.on_unhandled_end: Callable[[RankExit], None] = lambda _end: None
        """Called with the end of a process if the awaited answer that would have reported it came after
        all.
        """
        self.on_dropped: Callable[[Pending, str], None] | None = None
        """Called with failed calls whose answer can't be read any more; and with the callee's name, if
        known.
        """
        self.unread: dict[int, Unread] = {}
        """Failed calls whose answer hasn't been read, by the identity of the pending."""
        self.reported_ends: set[int] = set()
        """Processes whose end was reported to this program, by an exception or by its hook."""
        self.unsettled: set[int] = set()
        """In a rank: cells that it has printed for since its last answer."""
        self.mark_output: Callable[[int], int] = lambda _origin: 0
        """In a rank: marks the present position of its output for a cell; returns the mark."""
        self.owed: dict[int, int] = {}
        """In a program that shows output: the mark of each answered proc up to which output is still to be
        shown.
        """
        self.on_printed: Callable[[int, int], None] | None = None
        """In a program that shows output: called with an answer's proc and mark, in the reading thread."""
        self.catch_up: Callable[[], None] = lambda: None
        """Waits, for a bounded time, until all such output has arrived, and shows it."""
        self.on_close: list[Callable[[], None]] = []
        """Called when this process leaves the mesh, while it can still send."""
        self.num_sent = 0
        """Calls and requests sent so far that await an answer."""
        self.calls: dict[Any, CallTimes] | None = None
        """In a notebook: the calls of each endpoint since the last journal entry."""
        self.callback_lock = threading.Lock()
        self._nothing = Body.plain(self, wire.EMPTY, 0, b"")
        """The body of all answers that are None."""
        self.pool = segment.SegmentPool()
        self._pending: dict[int, Pending] = {}
        self._refs = itertools.count(1)
        self._routes: dict[int, LocalSender] = {}
        self._old_routes: set[LocalSender] = set()
        """Invalid since the controller has gone, though references may remain."""
        self._route_lock = threading.Lock()
        self._releases: deque[tuple[int, int]] = deque()
        self._joiner = Joiner()
        self._receiver = LocalReceiver(address.socket_path(directory, me))
        self.closed = False
        self._closing = False
        self.lost = ""
        """How the mesh has ended, in a sentence, once its controller has gone: nothing can be sent or
        received any more.
        """
        self.left: Callable[[], TransportClosed] = _closed
        """Returns the error to raise once this program has closed its connection."""
        self.on_lost: Callable[[bool], None] = lambda _heard: None
        """Called when the controller has gone, in the background reader's thread, with whether a thread has
        raised an error about it.
        """
        self.reader = Reader(self._receiver, self._dispatch)
        self.reader.num_calls = lambda: self.num_sent
        self.reader.closing_error = self.closing_error
        self.reader.idle_work = self._idle_work

    def start(self) -> None:
        """Begin to receive. The hooks must be in place."""
        self.reader.start()

    # --- sending

    def route(self, dst: int) -> LocalSender:
        """Return the route to `dst`: straight on this machine, else by the host process."""
        route = self._routes.get(dst)
        if route is None:
            near = dst if address.host_of(dst) == self.host else address.host_proc(self.host)
            with self._route_lock:
                if self.closed or self.lost:
                    raise self.closing_error()
                route = self._routes.get(near)
                if route is None:
                    path = address.socket_path(self.directory, near)
                    route = self._routes[near] = LocalSender(path, self.reader.send_queues)
                self._routes[dst] = route
        return route

    def send(self, dst: int, frame: bytes) -> None:
        """Send a finished frame to `dst`."""
        if self._releases:
            self._flush_releases()
        (self._routes.get(dst) or self.route(dst)).send(frame)

    def post(self, dst: int, kind: int, body: Encoded = _NOTHING, **fields: Any) -> None:
        """Send one message with an encoded value."""
        if body.buffers and dst >> 32 != self.host and kind in _LENT_KINDS:
            body = remote_arguments().offer(self, body, (dst,))
        is_large = kind != wire.CONTROL and _is_large(body.payload)  # host processes map no segments
        if body.buffers or is_large:
            body, flags, table = self._outboard(body, [self._holder(dst)])
            fields["flags"] = fields.get("flags", 0) | flags
            fields["table"] = table
        self.send(dst, wire.pack(kind, src=self.me, dst=dst, payload=body.payload, **fields))

    def post_all(
        self, receivers: Sequence[Receiver], kind: int, body: Encoded = _NOTHING, **fields: Any
    ) -> Sequence[RankExit]:
        """Send one message to all `receivers`: one frame each on this machine, one per other host. Return the
        ends of those that it wasn't sent to because they have ended.
        """
        if body.buffers and kind in _LENT_KINDS:
            remote_receivers = [r for r in receivers if r[0] >> 32 != self.host]
            to_remote = [proc for proc, _ in remote_receivers]
            offered = remote_arguments().offer(self, body, to_remote) if to_remote else body
            if offered is not body:
                remote_ends = self.post_all(remote_receivers, kind, offered, **fields)
                near = [r for r in receivers if r[0] >> 32 == self.host]
                return [*remote_ends, *(self.post_all(near, kind, body, **fields) if near else ())]
        if self._releases:
            self._flush_releases()
        if body.buffers or _is_large(body.payload):
            holders = {self._holder(proc) for proc, _ in receivers}
            body, flags, table = self._outboard(body, holders)
            fields["flags"] = fields.get("flags", 0) | flags
            fields["table"] = table
        frame = wire.pack(kind, src=self.me, dst=0, payload=body.payload, **fields)
        remote: dict[int, list[Receiver]] = {}
        not_sent: list[RankExit] = []
        ends, routes, host = self.ends, self._routes, self.host
        addressed = wire.addressing(frame)
        for proc, slot in receivers:
            end = ends.get(proc) if ends else None
            if end is not None:  # the process that is started in its place must not receive the message
                if self.closed or self.lost:  # no other process is asked that would report it
                    raise self.closing_error()
                not_sent.append(end)
                continue
            if proc >> 32 == host:
                (routes.get(proc) or self.route(proc)).send(addressed(slot, proc))
            else:
                remote.setdefault(proc >> 32, []).append((proc, slot))
        for remote_host, theirs in remote.items():
            to = address.host_proc(remote_host)
            self.route(to).send(wire.pack_fanout(self.me, to, theirs, frame))
        return not_sent

    def _holder(self, dst: int) -> int:
        """Return the process of this machine that maps a buffer that is sent to `dst`, or has one that came
        from it.
        """
        return dst if address.host_of(dst) == self.host else address.host_proc(self.host)

    def _outboard(self, body: Encoded, holders: Any) -> tuple[Encoded, int, bytes]:
        buffers = list(body.buffers)
        flags = 0
        payload = body.payload
        if _is_large(payload):
            buffers.append(memoryview(payload))
            payload, flags = b"", wire.BULK
        return Encoded(payload), flags, self.pool.write(buffers, holders)

    def printed_for(self, origin: int) -> int:
        """Return how far this process' output for a cell has come, for an answer; 0 if there was none."""
        return self.mark_output(origin) if origin in self.unsettled else 0

    def poke(self) -> None:
        """Make the thread that reads the socket look up."""
        self._receiver.wake_up()

    def check_descriptors(self) -> None:
        """Have `reader.on_broken` called if somebody else has closed what messages come by."""
        if not self._closing and not self._receiver.is_whole():
            self.reader.on_broken()

    # --- waiting for answers

    def expect(self, pending: Pending) -> int:
        """Register `pending` and return the ref under which answers reach it."""
        ref = pending.ref = self.num_sent = next(self._refs)
        self._pending[ref] = pending
        if self.lost:
            pending.give_up(self.closing_error())
        return ref

    def check_ends(self, pending: Pending) -> None:
        """Fail `pending` for procs that are known to have ended. Call it after sending."""
        for proc in pending.procs:
            end = self.ends.get(proc)
            if end is not None:
                pending.lost(proc, end)

    def has_ended(self, proc: int, pending: Pending) -> bool:
        """Return whether a process has ended, and tell `pending` in that case. Nothing must be sent to it
        then: the process that is started in its place would receive it.
        """
        end = self.ends.get(proc)
        if end is None:
            return False
        pending.lost(proc, end)
        return True

    def drop_unread(self) -> None:
        """Report all errors that nobody has read, because this program leaves the mesh."""
        for unread in list(self.unread.values()):
            unread.drop()

    def forget(self, ref: int) -> None:
        """Drop the pending registered under `ref`."""
        self._pending.pop(ref, None)

    @property
    def num_pending(self) -> int:
        """Calls, streams and channels that wait for an answer."""
        return len(self._pending)

    def request(self, host_process: int, request: Request[T]) -> Reply[T]:
        """Ask a host process."""
        reply = Reply(self, (host_process,), request)
        ref = self.expect(reply)
        if not self.has_ended(host_process, reply):
            self.ask(host_process, request, ref)
            self.check_ends(reply)
        return reply

    def ask(self, host_process: int, request: Request[Any], ref: int = 0) -> None:
        """Send a request; who waits under `ref` gets what is answered. 0: nobody needs to know."""
        self.post(
            host_process, wire.CONTROL, Encoded(encode(request)), ref=ref, name=request.wire_name.encode()
        )

    # --- receiving; runs in the reading thread

    def _dispatch(self, frame: bytes) -> Any:
        plain = wire.plain_reply(frame)
        if plain is not None:
            flags, slot, src, ref, origin = plain
            pending = self._pending.get(ref)
            if pending is None:
                return None
            if origin and self.on_printed is not None:
                self.on_printed(src, origin)
            if flags == wire.EMPTY:
                return pending.deliver(slot, self._nothing)
            return pending.deliver(slot, Body.plain(self, flags, src, memoryview(frame)[wire.HEADER.size :]))
        if wire.is_piece(frame):
            return self._dispatch_piece(frame)
        message = wire.unpack(frame)
        kind = message.kind
        if kind == wire.REPLY:
            if message.name:
                for (inode,) in _INODE.iter_unpack(message.name):
                    self.pool.release(inode, message.src)
            pending = self._pending.get(message.ref)
            if pending is not None:
                if message.origin and self.on_printed is not None:
                    self.on_printed(message.src, message.origin)
                return pending.deliver(message.slot, Body(self, message))
            if message.table:
                # no thread waits any more: decoded and dropped, so that the sender is told
                Body(self, message)
            return None
        if kind == wire.CALL:
            service = self.services.get(message.name) if message.target == 0 else None
            return self.on_call(message) if service is None else service(message)
        if kind == wire.COMBINED:
            return self._take_combined(message)
        if kind == wire.RELEASE:
            self.pool.release(message.ref, message.src)
        elif kind == wire.OUTPUT:
            pending = self._pending.get(message.ref)
            if pending is None:
                self.on_output(message)
            else:
                pending.output(message)
        elif kind == wire.EVENT:
            self._take_event(message)
        return None

    def _dispatch_piece(self, piece: bytes) -> Any:
        frame = self._joiner.whole(piece)
        if frame is None:
            return None
        target = self._dispatch(frame)
        self._joiner.done(piece)
        return target

    def _take_combined(self, message: Message) -> Any:
        pending = self._pending.get(message.ref)
        if pending is None:
            return None
        if self.on_printed is not None:
            for proc, mark in wire.combined_marks(message):
                self.on_printed(proc, mark)
        awake = None
        for flags, slots, payload in wire.unpack_combined(message):
            for slot in slots:
                ready = pending.deliver(slot, Body.plain(self, flags, message.src, payload))
                if ready is not None and ready is not awake:
                    if (
                        awake is not None
                    ):  # each answer of a stream has its own waiter, which the caller wakes
                        self.reader.notify(awake)
                    awake = ready
        return awake

    def _take_event(self, message: Message) -> None:
        kind = Event.known.get(message.name.decode())
        if kind is None:
            return  # no module of this process has imported this type of event
        event = decode(kind, message.payload or NO_FIELDS)
        if isinstance(event, RanksEnded):
            event = RanksEnded(tuple(self._take_end(end) for end in event.ends))
        elif isinstance(event, RanksRevived):
            for proc in event.procs:
                self.ends.pop(proc, None)
                self.reported_ends.discard(proc)
        for handlers in self.event_handlers:
            handlers.tell(event, Sender(message.src))

    def _take_end(self, end: RankExit) -> RankExit:
        """Tell waiters that a process has ended; return the end, with whether something here raises because
        of it.
        """
        proc = end.proc
        end = replace(end, handled=any(self._handles(ref, end) for ref in list(self._pending)))
        self.ends[proc] = end
        self.pool.forget(proc)
        with self._route_lock:
            route = self._routes.pop(proc, None)
        if route is not None and address.host_of(proc) == self.host:
            route.close()
        for pending in list(self._pending.values()):
            awake = pending.lost(proc, end)
            if awake is not None:
                self.reader.notify(awake)
        return end

    def _handles(self, ref: int, end: RankExit) -> bool:
        """Return whether whoever waits under `ref` will report a process' end to its caller."""
        pending = self._pending.get(ref)
        if pending is None or not pending.handles_end(end):
            return False
        if not pending.has_sole_reader:
            return True
        del pending
        try:
            return _num_references(self._pending, ref) > _ONLY_TABLE
        except KeyError:  # another thread has completed it
            return False

    # --- buffers of other owners

    def open_segment(self, owner: int, pid: int, fd: int, inode: int) -> segment.Mapping:
        """Map a buffer that came with a message of process `owner`; whoever has put it into this machine's
        memory is told when it has been dropped: that process, or for another machine's our host process.
        """
        owner = self._holder(owner)

        def on_release() -> None:
            self._releases.append((owner, inode))
            # otherwise the answer, or the end of the message's handling, will tell the owner
            if not call_context.get().src:
                self.reader.wake_up()

        return segment.open_segment(pid, fd, inode, on_release)

    def releases_for(self, dst: int) -> bytes:
        """Return the segments of `dst` dropped here, to go along in an answer to it."""
        releases = self._releases
        if not releases:
            return b""
        inodes: list[int] = []
        others: list[tuple[int, int]] = []
        with suppress(IndexError):  # others append and take meanwhile: whoever drops a value, from any thread
            while True:
                owner, inode = release = releases.popleft()
                if owner == dst:
                    inodes.append(inode)
                else:
                    others.append(release)
        releases.extend(others)
        return struct.pack(f"<{len(inodes)}Q", *inodes)

    def settle(self) -> None:
        """Tell owners of segments dropped here, if that hasn't been done."""
        mapped_bytes.give_back()
        if self._releases:
            self._flush_releases()

    def _flush_releases(self) -> None:
        while True:
            try:
                owner, inode = self._releases.popleft()
            except IndexError:
                return
            if owner not in self.ends and not self.closed and not self.lost:
                self.route(owner).send(wire.pack(wire.RELEASE, src=self.me, dst=owner, ref=inode))

    def _idle_work(self) -> float | None:
        look_s = mapped_bytes.give_back()
        if self._releases:
            self._flush_releases()
        trim_s = self.pool.trim() if self.pool.free_bytes else None
        return min((s for s in (look_s, trim_s) if s is not None), default=None)

    # --- the end

    def close(self, linger_s: float = LINGER_S) -> None:
        """Close everything; who still waits gets a `TransportClosed`. Whoever stops a mesh and whoever hears
        of its end may call it at the same time: the first closes, the other returns at once.
        """
        with self._route_lock:
            if self._closing:
                return
            self._closing = True
        for callback in self.on_close:
            callback()
        if self.lost:
            linger_s = 0.0
        else:
            self._flush_releases()
            self._wake_all()
        self.reader.close()
        with self._route_lock:
            self.closed = True
            until = time.monotonic() + linger_s
            for route in set(self._routes.values()):
                route.close(until - time.monotonic())
            self._routes.clear()
            for route in self._old_routes:
                route.close()
        self.reader.send_queues.close()
        self._receiver.close()
        self.pool.close()
        try:
            os.unlink(address.socket_path(self.directory, self.me))
        except OSError:
            return

    def closing_error(self) -> TransportClosed:
        """Return the error to raise, now that nothing can be sent or waited for any more."""
        return MeshEnded(self.lost) if self.lost else self.left()

    def watch_controller(self, pid: int, describe: Callable[[], str]) -> None:
        """Let nobody wait any more once the controller, a process of this machine, is gone. Call it before
        `start`.

        Args:
            describe: called then; returns how the mesh has ended, in a sentence.
        """
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return  # the receiver is gone already: no greeting will be answered
        self.reader.end_with(fd, lambda: self._lose(describe()))

    def _lose(self, how: str) -> None:
        """Note that the controller is gone: fail all pending answers, and those that are asked for later."""
        heard = any(p.is_awaited for p in list(self._pending.values()))
        with self._route_lock:
            if self.closed:
                return
            self.lost = how
            self._old_routes |= set(self._routes.values())
            self._routes.clear()
        for pending in list(self._pending.values()):
            try:
                pending.give_up(self.closing_error())
            except Exception:  # an error of one callback: the others must be called nevertheless
                traceback.print_exc()
        self.reader.begin_close()
        self._receiver.wake_up()
        self.on_lost(heard)

    def _wake_all(self) -> None:
        """Make every waiting thread look up; the reader's `closing` flag then ends its wait."""
        self.reader.begin_close()
        with suppress(TransportClosed):
            self.poke()
        for pending in list(self._pending.values()):
            pending.give_up(self.closing_error())


_LENT_KINDS = (wire.CALL, wire.REPLY)


def _num_references(table: dict[int, Any], key: int) -> int:
    """Return how many references there are to what a table has under a key, with the table's own."""
    return sys.getrefcount(table[key])


_ONLY_TABLE = _num_references({0: object()}, 0)


def _is_large(payload: bytes) -> bool:
    """Say whether a payload travels outside of its message."""
    return len(payload) >= segment.MIN_BYTES and len(payload) >= segment.min_bytes()


def _closed() -> TransportClosed:
    """Return the error for a rank that has left the mesh, as it does when it ends."""
    return TransportClosed("the connection to the mesh has been closed")


def _refuse(message: Message) -> None:
    """Ignore a call: a process without actors takes none."""
