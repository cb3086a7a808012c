"""Objects that wait for answers: one reply, all replies of a fan-out, a stream of them, or a channel.

A pending is registered in its transport under a `ref`; the thread that reads the socket calls `deliver` for
each arrived answer and `lost` when a process it waits for has died. Values stay encoded until somebody asks
for them, so no user code runs in the reading thread.

First failure, all failures: the first error starts a short grace in which the other ranks may finish or fail
too; then the pending is complete, with whatever has come.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from monarch_nb._protocol.base import Request, decode
from monarch_nb._protocol.exits import RankExit
from monarch_nb._wire import codec, segment
from monarch_nb._wire.message import BULK, EMPTY, ENTRY, ERROR, Message
from monarch_nb.exceptions import RequestFailed

if TYPE_CHECKING:
    from monarch_nb._transport.transport import Transport

T = TypeVar("T")

ERROR_GRACE_S = 0.1
"""How long other ranks may continue after the first exception."""
LOST_GRACE_S = 0.005
"""How long other ranks may continue after a rank has died. It also allows the dead rank's last answers to
arrive: they come directly from it, the event of its end through the host process.
"""


class Body:
    """An encoded value that has arrived; decoded when it's read, released when it's dropped unread."""

    __slots__ = ("_buffers", "_transport", "flags", "payload", "src")

    def __init__(self, transport: Transport, message: Message) -> None:
        self._transport = transport
        self.flags = message.flags
        self.src = message.src
        self.payload: memoryview | bytes = message.payload
        self._buffers = self._open(message.table) if message.table else ()

    @classmethod
    def plain(cls, transport: Transport, flags: int, src: int, payload: bytes | memoryview) -> Body:
        """Return a body without buffers."""
        body = cls.__new__(cls)
        body._transport, body.flags, body.src, body.payload, body._buffers = (
            transport,
            flags,
            src,
            payload,
            (),
        )
        return body

    def _open(self, table: bytes) -> Sequence[memoryview]:
        """Map the buffers at once: it costs 20 us, and the owner may be gone when the value is read."""
        maps: dict[int, segment.Mapping] = {}
        views = []
        for _, fd, pid, inode, offset, size in ENTRY.iter_unpack(table):
            if inode not in maps:
                maps[inode] = self._transport.open_segment(self.src, pid, fd, inode)
            views.append(memoryview(maps[inode])[offset : offset + size])
        return views

    def value(self) -> Any:
        """Return the value. Each call makes a new one, except that big buffers are shared."""
        if self.flags & EMPTY:
            return None
        if self.flags & BULK:
            return codec.decode(self._buffers[-1], self._buffers[:-1])
        return codec.decode(self.payload, self._buffers)

    def read(self, kind: Any) -> Any:
        """Return an answer that is of a type of the protocol's: to a request, or a failure.

        Raises:
            Malformed: if it isn't.
        """
        return decode(kind, self._buffers[-1] if self.flags & BULK else self.payload)


MAX_CALLS_EACH = 100
"""Maximum number of calls of an endpoint in one cell that are journalled separately; the totals cover all."""


class CallTime:
    """The timing of one call: when it was made, and how long each rank took, from the call to its answer,
    measured by the caller.
    """

    __slots__ = ("num_failed", "seconds", "totals", "when")

    def __init__(self, totals: CallTimes | None) -> None:
        self.totals = totals
        self.when = time.time()
        self.num_failed = 0
        self.seconds: dict[int, float] = {}

    def note(self, slot: int, seconds: float, *, failed: bool) -> None:
        """Record an answer."""
        self.seconds[slot] = self.seconds.get(slot, 0.0) + seconds
        self.num_failed += failed
        if self.totals is not None:
            self.totals.note(slot, seconds, failed=failed)


class CallTimes(CallTime):
    """The totals of an endpoint's calls from this process: how many calls, how many failed answers, and the
    time of each rank in all; the first calls (`MAX_CALLS_EACH`) also each by itself.
    """

    __slots__ = ("each", "num")

    def __init__(self) -> None:
        super().__init__(None)
        self.num = 0
        self.each: list[CallTime] = []

    def begin_call(self) -> CallTime:
        """Return the recorder of one call."""
        if len(self.each) >= MAX_CALLS_EACH:
            return self
        self.each.append(CallTime(self))
        return self.each[-1]


class Unread(weakref.ref[Any]):
    """The record of a failed call whose answer nobody has read yet. If all possible readers disappear,
    `on_dropped` of the transport is called.
    """

    __slots__ = ("key", "pending", "what")

    key: int
    pending: Pending
    what: str

    @classmethod
    def of(cls, asker: Any, key: int, pending: Pending, what: str) -> Self:
        """Record that whoever refers to `asker` has an error of `pending` to read."""
        found = cls(asker, cls.drop)
        found.key, found.pending, found.what = key, pending, what
        return found

    def drop(self) -> None:
        """Report the error to the transport's `on_dropped`, because nobody can read it any more."""
        transport = self.pending.transport
        if transport.unread.pop(self.key, None) is not None and transport.on_dropped is not None:
            transport.on_dropped(self.pending, self.what)


asks_quietly: ContextVar[bool] = ContextVar("monarch_nb-asks-quietly", default=False)
"""Whether an error of this thread's requests doesn't count as telling the user that the mesh has ended: then
the user is told in another way.
"""


class Pending:
    """The base of all objects that wait for messages. The reading thread changes their state, or the
    transport does under its lock.
    """

    __slots__ = (
        "_callbacks",
        "asker",
        "due",
        "fault",
        "park",
        "procs",
        "ready",
        "ref",
        "started",
        "times",
        "transport",
        "urgent",
        "waited",
    )  # fmt: skip

    def __init__(self, transport: Transport, procs: Sequence[int]) -> None:
        self.transport = transport
        self.ref = 0
        self.procs = procs
        self.ready = False
        self.fault: Exception | None = None
        """The error to raise when no answer can arrive any more."""
        self.asker: Callable[[], object] | None = None
        """Returns the object that waits for the answer, or None if none does any more; without it, the
        creator of this object.
        """
        self.park: threading.Lock | None = None
        self.waited = False
        """Whether a thread waits for this in the reader: only one at a time can."""
        self.urgent = True
        self.due: float | None = None
        self.times: CallTime | None = None
        """Records the time of each answer, in a notebook."""
        self.started = 0.0
        self._callbacks: list[Callable[[], None]] | None = None

    def deliver(self, slot: int, body: Body) -> Pending | None:
        """Handle an answer; return the object that has become ready."""
        raise NotImplementedError

    def output(self, message: Message) -> None:
        """Handle output sent to this ref; only watches receive any."""

    def lost(self, proc: int, end: RankExit) -> Pending | None:
        """Handle the death of `proc`; return the object that has become ready."""
        raise NotImplementedError

    def handles_end(self, end: RankExit) -> bool:
        """Say whether this wait will report a process' end to its caller."""
        return end.proc in self.at_work() and (self.asker is None or self.asker() is not None)

    def failed_on(self) -> None:
        """Record that an answer is an error, so that it's reported if nobody reads it. Called only for
        errors, so that good answers cost nothing.
        """
        if self.asker is None or self.transport.on_dropped is None or id(self) in self.transport.unread:
            return
        asker = self.asker()
        if asker is not None:
            self.transport.unread[id(self)] = Unread.of(asker, id(self), self, getattr(asker, "_what", ""))
        else:
            self.transport.on_dropped(self, "")

    @property
    def has_sole_reader(self) -> bool:
        """Whether only who reads the answer refers to this, beside the transport that waits for it."""
        return False

    @property
    def is_awaited(self) -> bool:
        """Whether a thread or task waits for this at present, and so will get its error."""
        return not self.ready and (self.waited or bool(self._callbacks))

    def give_up(self, fault: Exception) -> None:
        """Complete with an error to be raised: no answer will come."""
        if not self.ready:
            self.fault = fault
            self.complete()
        self.transport.reader.notify(self)

    def check_fault(self) -> None:
        """Raise the error that prevents an answer, if there is one."""
        if self.fault is not None:
            raise self.fault

    def at_work(self) -> tuple[int, ...]:
        """Return the procs that haven't answered."""
        return () if self.ready else tuple(self.procs)

    def expire(self) -> None:
        """Complete with the answers so far: the grace period is over."""
        self.complete()

    def complete(self) -> None:
        """Make ready, leave the transport's table, run the callbacks. Does nothing the second time."""
        with self.transport.callback_lock:
            if self.ready:
                return
            self.ready = True
            callbacks = self._callbacks
        if self.ref:
            self.transport.forget(self.ref)
        if callbacks:
            self._callbacks = None
            _run_callbacks(callbacks)

    def claim(self) -> bool:
        """Become the thread that waits for this in the reader, until it resets `waited`; False if another
        thread is.
        """
        with self.transport.callback_lock:
            was_waited, self.waited = self.waited, True
        return not was_waited

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Run `callback` once ready: at once if it is, else in the thread that makes it so."""
        with self.transport.callback_lock:
            if not self.ready:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                self.transport.reader.ensure_reading()
                return
        callback()

    def limit(self, grace_s: float) -> None:
        """Wait for the others no longer than `grace_s` from now."""
        due = time.monotonic() + grace_s
        if self.due is None or due < self.due:
            self.due = due
            self.transport.reader.call_at(due, self._on_timer)  # used when no thread waits

    def _on_timer(self) -> None:
        if not self.ready and self.due is not None and time.monotonic() >= self.due:
            self.complete()
            self.transport.reader.notify(self)


_callback = threading.local()


def _run_callbacks(callbacks: Sequence[Callable[[], None]]) -> None:
    outer, _callback.runs = in_callback(), True
    try:
        for callback in callbacks:
            callback()
    finally:
        _callback.runs = outer


def in_callback() -> bool:
    """Say whether this thread runs a callback of an arrived answer: it may be the one that reads the socket,
    and must not wait.
    """
    return getattr(_callback, "runs", False)


class OneReply(Pending):
    """A wait for a single answer."""

    __slots__ = ("__weakref__", "accepts_end", "body", "end", "slot", "sole_reader")

    def __init__(self, transport: Transport, procs: Sequence[int]) -> None:
        # what `Pending.__init__` does, without the call: one of these is made for each call of an endpoint
        self.transport = transport
        self.ref = 0
        self.procs = procs
        self.ready = self.waited = False
        self.urgent = True
        self.fault = self.asker = self.park = self.due = self.times = self._callbacks = None
        self.started = 0.0
        self.accepts_end = False
        """Whether the end of the mesh counts as an answer: it does for a request to stop the mesh."""
        self.body: Body | None = None
        self.end: RankExit | None = None
        self.slot = 0
        self.sole_reader: str | None = None
        """Name of what was called, if one future reads the answer, and nothing else refers to this. It takes
        the place of `asker`: a weak reference to each future is a seventh of what a call costs its caller.
        """

    @property
    def has_sole_reader(self) -> bool:
        return self.sole_reader is not None and self.asker is None

    def check_fault(self) -> None:
        if not self.accepts_end:
            super().check_fault()

    def deliver(self, slot: int, body: Body) -> Pending | None:
        if self.times is not None:
            self.times.note(slot, time.perf_counter() - self.started, failed=bool(body.flags & ERROR))
        self.slot = slot
        self.body = body
        if self.end is not None:  # its last answer overtook the event of its end, which needs no report now
            self.transport.on_unhandled_end(self.end)
            self.end = None
        if body.flags & ERROR:
            self.failed_on()
        Pending.complete(self)
        return self

    def lost(self, proc: int, end: RankExit) -> Pending | None:
        if proc not in self.procs or self.ready:
            return None
        self.end = end
        if not self.has_sole_reader:
            self.failed_on()
        self.limit(LOST_GRACE_S)
        return self

    def complete(self) -> None:
        if not self.ready and self.end is not None and self.has_sole_reader:
            self.failed_on()  # as it is now: it changes no more
        super().complete()

    def failed_on(self) -> None:
        if self.has_sole_reader and self.transport.on_dropped is not None:
            key = id(self)
            self.transport.unread[key] = Unread.of(self, key, self._result(), self.sole_reader or "")
        else:
            super().failed_on()

    def _result(self) -> OneReply:
        """Return a copy, to report this failure when nobody refers to this any more."""
        found = OneReply(self.transport, self.procs)
        found.slot, found.body, found.end, found.ready = self.slot, self.body, self.end, True
        return found


class Reply(OneReply, Generic[T]):
    """A wait for the answer to a request."""

    __slots__ = ("is_quiet", "request")

    def __init__(self, transport: Transport, procs: Sequence[int], request: Request[T]) -> None:
        super().__init__(transport, procs)
        self.request = request
        self.is_quiet = asks_quietly.get()

    @property
    def is_awaited(self) -> bool:
        """Whether a thread or task waits for this at present, and so will report its error."""
        return not self.is_quiet and super().is_awaited

    def read(self) -> T:
        """Return the answer.

        Raises:
            RequestFailed: with the reason of whoever was asked.
            MeshEnded: if it's gone.
        """
        self.check_fault()
        if self.body is None:
            raise RequestFailed("the mesh has ended")
        if self.body.flags & ERROR:
            raise RequestFailed(self.body.read(str))
        answer: T = self.body.read(self.request.answer_type())
        return answer


class GatherReply(Pending):
    """A wait for one answer from each slot."""

    __slots__ = ("bodies", "ends", "failed", "num_left")

    def __init__(self, transport: Transport, procs: Sequence[int]) -> None:
        super().__init__(transport, procs)
        self.bodies: list[Body | None] = [None] * len(procs)
        self.ends: dict[int, RankExit] = {}
        self.failed: list[int] = []
        """Slots that failed, first in time first."""
        self.num_left = len(procs)

    def at_work(self) -> tuple[int, ...]:
        return () if self.ready else tuple(p for i, p in enumerate(self.procs) if self.bodies[i] is None)

    def deliver(self, slot: int, body: Body) -> Pending | None:
        if self.bodies[slot] is not None:
            return None
        if self.times is not None:
            self.times.note(slot, time.perf_counter() - self.started, failed=bool(body.flags & ERROR))
        self.bodies[slot] = body
        end = self.ends.pop(slot, None)
        if end is not None:
            self.failed.remove(
                slot
            )  # its last answer overtook the event of its end, which needs no report now
            self.transport.on_unhandled_end(end)
        self.num_left -= 1
        if body.flags & ERROR:
            self.failed.append(slot)
            self.failed_on()
            self.limit(ERROR_GRACE_S)
        elif self.num_left:
            return None
        if not self.num_left:
            self.complete()
        return self

    def lost(self, proc: int, end: RankExit) -> Pending | None:
        if proc not in self.procs or self.ready:
            return None
        for slot in [i for i, p in enumerate(self.procs) if p == proc and self.bodies[i] is None]:
            if slot not in self.ends:
                self.ends[slot] = end
                self.failed.append(slot)
                self.failed_on()
                self.limit(LOST_GRACE_S)
        return self if self.ends else None  # the woken thread sets its own alarm again


class Arrivals(Pending):
    """A stream of answers, one by one, in order of arrival."""

    __slots__ = ("_lost", "_next", "replies")

    def __init__(self, transport: Transport, procs: Sequence[int]) -> None:
        super().__init__(transport, procs)
        self.replies = [OneReply(transport, procs) for _ in procs]
        self._next = 0
        self._lost: dict[int, OneReply] = {}
        """By slot: the replies of processes that were lost before they answered."""

    def deliver(self, slot: int, body: Body) -> Pending | None:
        lost = self._lost.pop(slot, None)
        if lost is None:
            return self._take_reply().deliver(slot, body)
        return None if lost.ready else lost.deliver(slot, body)

    def lost(self, proc: int, end: RankExit) -> Pending | None:
        if proc not in self.procs or self.ready:
            return None
        slot = self.procs.index(proc)
        if slot in self._settled_slots():
            return None
        reply = self._lost[slot] = self._take_reply()
        reply.slot = slot
        return reply.lost(proc, end)

    @property
    def is_awaited(self) -> bool:
        return any(reply.is_awaited for reply in self.replies)

    def give_up(self, fault: Exception) -> None:
        for reply in self.replies[self._next :]:
            reply.give_up(fault)
        super().give_up(fault)

    def handles_end(self, end: RankExit) -> bool:
        if self.ready or end.proc not in self.procs:
            return False
        return self.procs.index(end.proc) not in self._settled_slots()

    def _settled_slots(self) -> set[int]:
        """Return the slots that have answered, or whose process was lost."""
        taken = self.replies[: self._next]
        return {reply.slot for reply in taken if reply.body is not None or reply.end is not None}

    def _take_reply(self) -> OneReply:
        reply = self.replies[self._next]
        self._next += 1
        if self._next == len(self.replies):
            self.complete()
        return reply


class Mailbox(Pending):
    """The receiving end of a channel, with any number of messages, in order."""

    __slots__ = ("_queue", "_takers", "once")

    def __init__(self, transport: Transport, once: bool) -> None:
        super().__init__(transport, ())
        self.once = once
        self._queue: deque[tuple[int, Body]] = deque()
        self._takers: deque[OneReply] = deque()

    def next_reply(self) -> OneReply:
        """Return a pending for the next message."""
        reply = OneReply(self.transport, ())
        with self.transport.callback_lock:
            if self._queue:
                reply.slot, reply.body = self._queue.popleft()
                reply.ready = True
            elif self.fault is not None:
                reply.fault, reply.ready = self.fault, True
            else:
                self._takers.append(reply)
        return reply

    @property
    def is_awaited(self) -> bool:
        return any(reply.is_awaited for reply in list(self._takers))

    def give_up(self, fault: Exception) -> None:
        with self.transport.callback_lock:
            self.fault = fault
            takers = list(self._takers)
            self._takers.clear()
        for reply in takers:
            reply.give_up(fault)
        super().give_up(fault)

    def deliver(self, slot: int, body: Body) -> Pending | None:
        with self.transport.callback_lock:
            if not self._takers:
                self._queue.append((slot, body))
                return None
            reply = self._takers.popleft()
        if self.once:
            self.complete()
        return reply.deliver(slot, body)

    def lost(self, proc: int, end: RankExit) -> Pending | None:
        return None
