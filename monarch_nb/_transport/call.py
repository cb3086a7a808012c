"""Makes calls: registers who waits for the answers, sends, and fails at once for processes that have ended.
Also answers calls.

A call is made in this order, always: an answer can come as soon as the message is out, and the event of an
end that has come before the call will not come again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from monarch_nb._protocol.failure import Failure
from monarch_nb._transport.failure import encode_failure, without_details
from monarch_nb._transport.pending import Pending
from monarch_nb._transport.transport import Receiver, Transport
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.message import Message
from monarch_nb._wire.segment import MIN_BYTES

P = TypeVar("P", bound=Pending)


def call(
    pending: P, receivers: Sequence[Receiver], name: bytes, body: Encoded, *,
    target: int = 0, flags: int = 0, origin: int = 0, context: bytes = b"",
) -> P:  # fmt: skip
    """Send one message to all receivers; return the object that waits for their answers.

    Args:
        pending: takes an answer for each slot of the receivers.
        name: what is called.
        body: its arguments.
        target: the actor's id; 0: the processes themselves.
        flags: of the message (`wire.EMPTY` ...).
        origin: in whose name it's called (`origin_in`).
        context: the extent of the mesh that is called, encoded.

    Raises:
        TransportClosed: if this process has left the mesh, or that has ended.
        MemoryError: if there's no shared memory for a large body.

    Example:
        >>> gather = call(GatherReply(transport, procs), [(proc, 0)], b"noop", Encoded(b""))  # doctest: +SKIP
        >>> Future(gather, lambda pending: value_mesh(pending, shape, "noop"), "noop").get()  # doctest: +SKIP
    """
    transport = pending.transport
    not_sent = transport.post_all(
        receivers, wire.CALL, body, flags=flags, ref=transport.expect(pending), target=target,
        origin=origin, name=name, context=context,
    )  # fmt: skip
    for end in not_sent:
        pending.lost(end.proc, end)
    if transport.ends:
        transport.check_ends(pending)
    return pending


def call_each(
    pending: P, receivers: Sequence[Receiver], name: bytes, bodies: Sequence[tuple[Encoded, int]], *,
    target: int = 0, origin: int = 0, context: bytes = b"",
) -> P:  # fmt: skip
    """Send a message of its own to each receiver, all answered to one `pending`; otherwise like `call`.

    Args:
        bodies: arguments and flags for each receiver.
    """
    transport = pending.transport
    ref = transport.expect(pending)
    for (proc, slot), (body, flags) in zip(receivers, bodies, strict=True):
        if transport.has_ended(proc, pending):
            continue
        transport.post(
            proc, wire.CALL, body, flags=flags, slot=slot, ref=ref, target=target,
            origin=origin, name=name, context=context,
        )  # fmt: skip
    if transport.ends:
        transport.check_ends(pending)
    return pending


def call_one(
    pending: P, proc: int, name: bytes, body: Encoded,
    flags: int = 0, slot: int = 0, target: int = 0, origin: int = 0, context: bytes = b"",
) -> P:  # fmt: skip
    """Send a message to one process; otherwise like `call`. Arguments are positional, for speed."""
    transport = pending.transport
    ref = transport.expect(pending)
    if transport.ends and transport.has_ended(proc, pending):
        return pending
    if body.buffers or len(body.payload) >= MIN_BYTES:
        transport.post(
            proc, wire.CALL, body, flags=flags, slot=slot, ref=ref, target=target,
            origin=origin, name=name, context=context,
        )  # fmt: skip
    else:
        frame = wire.pack_plain(
            wire.CALL, flags, slot, transport.me, proc, ref, target, origin, name, context, body.payload
        )
        transport.send(proc, frame)
    if transport.ends:
        transport.check_ends(pending)
    return pending


def answer(
    transport: Transport, message: Message, body: Encoded, flags: int = 0, released: bytes = b""
) -> None:
    """Answer a call, and report how far this process' output for its cell has come.

    Args:
        released: the caller's segments that have been dropped here (`Transport.releases_for`).

    Raises:
        MemoryError: if there's no shared memory for a large body.
    """
    transport.post(
        message.src, wire.REPLY, body, flags=flags, slot=message.slot, ref=message.ref,
        name=released, origin=transport.printed_for(message.origin),
    )  # fmt: skip


def answer_failure(
    transport: Transport, message: Message, failure: Failure, *, marks_output: bool = True
) -> None:
    """Answer a call with a failure; without its details where there's no shared memory for them.

    Args:
        marks_output: whether the answer says how far this process' output has come. Not for the reading
            thread: writing the mark may block.
    """
    origin = transport.printed_for(message.origin) if marks_output else 0
    for each in (failure, without_details(failure)):
        try:
            transport.post(
                message.src, wire.REPLY, encode_failure(each), flags=wire.ERROR, slot=message.slot,
                ref=message.ref, origin=origin,
            )  # fmt: skip
        except MemoryError:
            if each is not failure:
                raise
        else:
            return
