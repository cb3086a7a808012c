"""Connects the data plane of one process to those of others, and identifies this process. The mesh's messages
do both; tests have another implementation.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from monarch_nb._protocol import calls
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.failure import Failure
from monarch_nb._transport import process_context
from monarch_nb._transport.call import call_one
from monarch_nb._transport.failure import describe, encode_failure, revive
from monarch_nb._transport.pending import Body, OneReply, Pending
from monarch_nb._transport.transport import Transport, TransportClosed
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.message import Message
from monarch_nb.actor.future import Future
from monarch_nb.exceptions import MeshError, RDMAError, TransferTimeout
from monarch_nb.rdma.broadcast.questions import Lead
from monarch_nb.rdma.handle import Addresses, Handle
from monarch_nb.rdma.path import gone
from monarch_nb.rdma.question import Question

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a callback that runs after it has been sent, successfully or not."""

    value: object
    afterwards: Callable[[], None]


Answerer = Callable[[Any], object]
"""Answers a request, with the type that the request declares or an `Answer` that holds it."""


class Link(Protocol):
    """The interface through which a data plane reaches other processes and knows its own addresses."""

    @property
    def addresses(self) -> Addresses:
        """The meshes that this process belongs to, and its proc id in each."""

    @property
    def label(self) -> str:
        """The name of this process for users."""

    def ask(self, question: Question[T], timeout_s: float) -> T:
        """Send a question to the owner of its buffer, and return the answer of the owner's `Answerer`.

        Raises:
            BufferGone: if the owner has ended, or has dropped the buffer.
            RDMAError: if it raised.
            TransferTimeout: if it didn't answer in time.
        """

    def serve(self, answerer: Answerer, submit: Callable[[Callable[[], None]], object]) -> None:
        """Answer questions from now on; `submit` runs a function in another thread."""


def ask_process(
    transport: Transport, proc: int, question: Question[T], timeout_s: float, who: str
) -> T | None:
    """Send a question to the data plane of a process, and wait for the answer. Return None if the process has
    ended.

    Raises:
        MeshError: the error raised there, or an RDMAError that describes it.
        TransferTimeout: if it didn't answer in time.
    """
    reply = OneReply(transport, (proc,))
    try:
        _send(reply, question)
        in_time = transport.reader.wait(reply, time.monotonic() + timeout_s)
    finally:
        transport.forget(reply.ref)
    if not in_time:
        raise _silent(who, timeout_s)
    found: T | None = _read(reply, who)
    return found


class _LateReply(OneReply):
    """A reply that may be waited for, or abandoned, with its duration. An interrupted waiter abandons it, and
    the request continues.
    """

    __slots__ = ("seconds",)

    def deliver(self, slot: int, body: Body) -> Pending | None:
        self.seconds = time.perf_counter() - self.started
        return super().deliver(slot, body)

    def handles_end(self, end: RankExit) -> bool:
        return not self.ready and end.proc in self.procs and (self.asker is None or self.asker() is not None)

    def at_work(self) -> tuple[int, ...]:
        return ()

    def when_ready(self, callback: Callable[[], None]) -> None:
        if self.due is not None and not self.ready:  # a waiting thread checks the time itself
            self.transport.reader.call_at(self.due, self._on_timer)
        super().when_ready(callback)


def ask_later(
    transport: Transport,
    proc: int,
    question: Question[Any] | Lead,
    timeout_s: float,
    who: str,
    finish: Callable[[Any, float], T],
) -> Future[T]:
    """Send a question like `ask_process`, and return a future of the answer.

    Args:
        finish: makes the future's value of the answer (None if the process has ended) and the seconds that it
            took.
    """
    reply = _LateReply(transport, (proc,))
    reply.started = time.perf_counter()
    reply.due = time.monotonic() + timeout_s
    _send(reply, question)

    def read(_pending: Any) -> T:
        if reply.body is None and reply.end is None:
            raise _silent(who, timeout_s)
        return finish(_read(reply, who), reply.seconds if reply.body is not None else 0.0)

    return Future(reply, read, who)


def _send(reply: OneReply, question: Question[Any] | Lead) -> None:
    call_one(reply, reply.procs[0], calls.DATA_PLANE, _plain(question))


def _plain(value: object) -> codec.Encoded:
    """Encode a message between data planes by plain pickle: it consists of basic types and classes of this
    package. All bytes stay in the payload: long ones outside it would be fetched by another question to the
    same process, whose answer would be as long (`remote_arguments`).
    """
    return codec.Encoded(pickle.dumps(value, 5))


def _silent(who: str, timeout_s: float) -> TransferTimeout:
    return TransferTimeout(f"{who} didn't answer the data plane within {timeout_s:g} s")


def _read(reply: OneReply, who: str) -> Any:
    """Return the answer; None if the process has ended."""
    reply.check_fault()
    if reply.body is None:
        return None
    if reply.body.flags & wire.ERROR:
        failure: Failure = reply.body.read(Failure)
        error = revive(failure.exception)
        raise (
            error
            if isinstance(error, MeshError)
            else RDMAError(f"{who} says: {failure.type}: {failure.message}")
        )
    return reply.body.value()


class MeshLink:
    """The link through a mesh's messages: between machines they are encrypted and authenticated.

    A rank is in one mesh; a program may be connected to several.
    """

    def __init__(self) -> None:
        where = process_context.whereabouts()
        self.label = (
            f"rank {where['rank']}" if process_context.rank is not None else f"the program {os.getpid()}"
        )
        self._transports: dict[str, Transport] = {}
        self._serve: Callable[[Transport], None] = lambda _transport: None

    @property
    def addresses(self) -> Addresses:
        """See `Link`."""
        return tuple((mesh, transport.me) for mesh, transport in self._transports.items())

    def join(self, transport: Transport) -> None:
        """Use this transport, too."""
        self._transports[transport.mesh_id] = transport
        self._serve(transport)

    def leave(self, transport: Transport) -> bool:
        """Remove a transport that is about to close; return whether another one is left."""
        self._transports.pop(transport.mesh_id, None)
        return bool(self._transports)

    def knows(self, transport: Transport) -> bool:
        """Return whether the link uses this transport."""
        return self._transports.get(transport.mesh_id) is transport

    def _way_to(self, handle: Handle) -> tuple[Transport, int]:
        for mesh, proc in handle.owner.addresses:
            transport = self._transports.get(mesh)
            if transport is not None:
                return transport, proc
        raise RDMAError(
            f"{handle.owner} can't be asked from here: it's in no mesh that {self.label} is in, or "
            "connected to"
        )

    def ask(self, question: Question[T], timeout_s: float) -> T:
        """See `Link`."""
        handle = question.handle
        answer = ask_process(*self._way_to(handle), question, timeout_s, str(handle.owner))
        if answer is None:
            raise gone(handle, f"{handle.owner} has ended")
        return answer

    def serve(self, answerer: Answerer, submit: Callable[[Callable[[], None]], object]) -> None:
        """See `Link`."""

        def serve_transport(transport: Transport) -> None:
            def on_request(message: Message) -> None:
                body = Body(
                    transport, message
                )  # at once: a buffer in the answer is mapped before its sender drops it
                submit(lambda: self._answer(transport, answerer, message, body))

            transport.services[calls.DATA_PLANE] = on_request

        self._serve = serve_transport
        for transport in self._transports.values():
            serve_transport(transport)

    def _answer(self, transport: Transport, answerer: Answerer, message: Message, body: Body) -> None:
        flags, afterwards = 0, None
        try:
            answer: Any = answerer(body.value())
            if isinstance(answer, Answer):
                answer, afterwards = answer.value, answer.afterwards
            found = _plain(answer)
        except Exception as error:
            flags = wire.ERROR
            found = encode_failure(describe(error, **process_context.whereabouts(), endpoint="rdma"))
        try:
            with suppress(TransportClosed):
                transport.post(
                    message.src, wire.REPLY, found, flags=flags, slot=message.slot, ref=message.ref
                )
        finally:
            if afterwards is not None:
                afterwards()
        with suppress(TransportClosed):
            transport.settle()


class LoopLink:
    """The link of a data plane without a mesh: it reaches only this process."""

    def __init__(self, label: str = "this process") -> None:
        self.addresses: Addresses = (("", 0),)
        self.label = label
        self._answerer: Answerer | None = None

    def ask(self, question: Question[T], timeout_s: float) -> T:
        """See `Link`."""
        if not question.handle.is_ours or self._answerer is None:
            raise gone(question.handle, "its owner can't be asked from here")
        answer: Any = self._answerer(question)
        if isinstance(answer, Answer):
            answer.afterwards()
            answer = answer.value
        return answer  # type: ignore[no-any-return]

    def serve(self, answerer: Answerer, submit: Callable[[Callable[[], None]], object]) -> None:
        """See `Link`."""
        self._answerer = answerer
