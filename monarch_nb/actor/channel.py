"""Channels: a port that travels in messages, and the receiver that stays."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from monarch_nb._transport import process_context
from monarch_nb._transport.context import call_context
from monarch_nb._transport.pending import Mailbox, OneReply
from monarch_nb._transport.port import Port
from monarch_nb.actor.future import Future
from monarch_nb.actor.outcome import one_value

R = TypeVar("R")


class PortReceiver(Generic[R]):
    """The receiving end of a channel. Any thread may receive; each message goes to one."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def recv(self) -> Future[R]:
        """Return a future of the next message. It raises what was sent with `Port.exception`."""
        return Future(self._mailbox.next_reply(), self._value, "a channel")

    def _value(self, reply: OneReply) -> Any:
        return one_value(reply, "channel")

    def close(self) -> None:
        """Receive no more."""
        self._mailbox.complete()


class RankedPortReceiver(PortReceiver[R]):
    """A receiver of `(rank, value)`: the sender's position in the slice it was called through."""

    def _value(self, reply: OneReply) -> Any:
        return reply.slot, one_value(reply, "channel")


class Channel:
    """The factory of channels.

    Example:
        >>> port, receiver = Channel.open()          # doctest: +SKIP
        >>> worker.start.broadcast(port)             # doctest: +SKIP
        >>> receiver.recv().get(timeout=10)          # doctest: +SKIP
    """

    @staticmethod
    def open(once: bool = False) -> tuple[Port[Any], PortReceiver[Any]]:
        """Return the two ends of a new channel; with `once`, it takes a single message."""
        mailbox, port = _make(once)
        return port, PortReceiver(mailbox)

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[Any], RankedPortReceiver[Any]]:
        """Return the two ends of a new channel whose messages come with the sender's rank."""
        mailbox, port = _make(once)
        return RankedPort(port.proc, port.ref, 0, port.mesh), RankedPortReceiver(mailbox)

    def __class_getitem__(cls, _item: Any) -> type[Channel]:
        return cls


def _make(once: bool) -> tuple[Mailbox, Port[Any]]:
    transport = process_context.transport()
    mailbox = Mailbox(transport, once)
    ref = transport.expect(mailbox)
    return mailbox, Port(transport.me, ref, 0, transport.mesh)


class RankedPort(Port[R]):
    """A port that adds the sender's rank to each message."""

    __slots__ = ()

    def _post(self, body: Any, flags: int) -> None:
        Port._post(Port(self.proc, self.ref, call_context.get().slot, self.mesh), body, flags)
