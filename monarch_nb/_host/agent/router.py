"""Routes messages between this machine and others.

Processes of one machine talk without us. What crosses machines comes through the host processes at both ends:
buffers are in shared memory on this side and follow as frames on the wire; a fan-out is one message on the
wire and is multiplied here; the answers to it are gathered here and go back as one, equal ones once. Payloads
are never looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monarch_nb._host.loop import Loop
from monarch_nb._wire import address, segment
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Answer, Message

COMBINE_S = 0.005
"""How long an answer may wait for other answers to its call. Errors don't wait."""

COMBINE_BYTES = 1 << 16
"""Larger answers are sent separately."""

Frames = list[Any]
Send = Callable[[int, bytes], None]


class _Gathering:
    """The answers of this machine's processes to one call, gathered until all have answered."""

    __slots__ = ("answers", "left", "marks", "timer")

    def __init__(self, num_expected: int) -> None:
        self.left = num_expected
        self.answers: dict[tuple[int, bytes], list[int]] = {}
        self.marks: list[tuple[int, int]] = []
        """Who had printed something, and up to which mark of its output."""
        self.timer = False


class Router:
    """The router of messages between local processes and the link to other hosts. Owned by the loop thread.

    Args:
        me: proc id of this host process.
        send_local: sends a frame to a process of this machine.
        send_remote: sends frames to another host, given its index.
    """

    def __init__(
        self, me: int, loop: Loop, send_local: Send, send_remote: Callable[[int, Frames], None]
    ) -> None:
        self.me = me
        self.host = address.host_of(me)
        self.pool = segment.SegmentPool()
        self._loop = loop
        self._send_local = send_local
        self._send_remote = send_remote
        self._gatherings: dict[tuple[int, int], _Gathering] = {}

    # --- from this machine to another

    def export(self, message: Message) -> None:
        """Forward a message of a local process to another host."""
        if message.kind == wire.REPLY and self._gather(message):
            return
        for key in [k for k, g in self._gatherings.items() if k[0] == message.dst and g.answers]:
            self._flush(key)  # no message overtakes an answer that is held back
        frame, extra = self._to_frames(message)
        self._send_remote(address.host_of(message.dst), [frame, *extra])

    def _to_frames(self, message: Message) -> tuple[bytes, Frames]:
        if message.kind == wire.FANOUT:
            receivers, inner = wire.unpack_fanout(message)
            inner, extra = self._to_frames(wire.unpack(inner))
            return wire.pack_fanout(message.src, message.dst, receivers, inner), extra
        if not message.table:
            return message.frame, []
        return self._detach(message)

    def _detach(self, message: Message) -> tuple[bytes, Frames]:
        """Replace shared memory by frames that follow."""
        maps: dict[int, segment.Mapping] = {}
        entries, frames = [], []
        for _, fd, pid, inode, offset, size in wire.ENTRY.iter_unpack(message.table):
            if inode not in maps:
                maps[inode] = segment.open_segment(pid, fd, inode, self._releaser(message.src, inode))
            frames.append(memoryview(maps[inode])[offset : offset + size])
            entries.append(wire.ENTRY.pack(wire.FRAME, 0, 0, 0, 0, size))
        return _with_table(message, b"".join(entries)), frames

    def _releaser(self, owner: int, inode: int) -> Callable[[], None]:
        release = wire.pack(wire.RELEASE, src=self.me, dst=owner, ref=inode)
        # ZeroMQ drops the view in its own thread; sockets are the loop's.
        return lambda: self._loop.call_soon_threadsafe(lambda: self._send_local(owner, release))

    # --- from another machine to this one

    def accept(self, frame: bytes, frames: Sequence[Any]) -> None:
        """Deliver a message from another host."""
        message = wire.unpack(frame, frames)
        if message.kind == wire.FANOUT:
            self._multiply(message, frames)
        else:
            self._send_local(message.dst, self._attach(message, frames, [message.dst]))

    def _multiply(self, fanout: Message, frames: Sequence[Any]) -> None:
        receivers, inner_frame = wire.unpack_fanout(fanout)
        inner = wire.unpack(inner_frame, frames)
        frame = self._attach(inner, frames, [proc for proc, _ in receivers])
        if inner.ref and len(receivers) > 1:
            self._gatherings[inner.src, inner.ref] = _Gathering(len(receivers))
        for proc, slot in receivers:
            self._send_local(proc, wire.readdress(frame, slot, proc))

    def _attach(self, message: Message, frames: Sequence[Any], holders: Sequence[int]) -> bytes:
        """Put frames that followed a message into shared memory, once for all `holders`."""
        if not message.table:
            return message.frame
        views = [memoryview(f) for f in frames]
        return _with_table(message, self.pool.write(views, holders))

    # --- answers of one call, together

    @property
    def holds_answers(self) -> bool:
        """Whether answers wait here for others, for `COMBINE_S` at most."""
        return any(gathering.timer for gathering in self._gatherings.values())

    def _gather(self, message: Message) -> bool:
        """Hold back an answer for a while; False if it must be sent separately."""
        key = (message.dst, message.ref)
        gathering = self._gatherings.get(key)
        if gathering is None:
            return False
        gathering.left -= 1
        by_itself = bool(message.table) or len(message.frame) > COMBINE_BYTES
        if not by_itself:
            answer = (message.flags, bytes(message.payload))
            gathering.answers.setdefault(answer, []).append(message.slot)
            if message.origin:
                gathering.marks.append((message.src, message.origin))
        if gathering.left <= 0 or message.flags & wire.ERROR or len(gathering.marks) >= wire.MAX_MARKS:
            self._flush(key)
        elif not gathering.timer and not by_itself:
            gathering.timer = True
            self._loop.call_later(COMBINE_S, lambda: self._flush(key))
        return not by_itself

    def _flush(self, key: tuple[int, int]) -> None:
        gathering = self._gatherings.get(key)
        if gathering is None:
            return
        gathering.timer = False
        if gathering.left <= 0:
            del self._gatherings[key]
        if gathering.answers:
            dst, ref = key
            answers = [
                Answer(flags, tuple(slots), data) for (flags, data), slots in gathering.answers.items()
            ]
            frame = wire.pack_combined(self.me, dst, ref, answers, gathering.marks)
            gathering.answers, gathering.marks = {}, []
            self._send_remote(address.host_of(dst), [frame])

    def forget(self, proc: int) -> None:
        """Drop what is kept for a process that has ended."""
        self.pool.forget(proc)
        for key in [k for k in self._gatherings if k[0] == proc]:
            del self._gatherings[key]


def _with_table(message: Message, table: bytes) -> bytes:
    m = message
    return wire.pack(
        m.kind, src=m.src, dst=m.dst, flags=m.flags, slot=m.slot, ref=m.ref, target=m.target, origin=m.origin,
        name=m.name, context=m.context, table=table, payload=bytes(m.payload),
    )  # fmt: skip
