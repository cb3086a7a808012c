"""One way to make a call, over real sockets: who waits is known first, and hears of ends that came before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_nb._protocol.exits import RankExit
from monarch_nb._transport.call import call, call_each, call_one
from monarch_nb._transport.pending import GatherReply, OneReply, Pending
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.message import Message

T = 20.0


class Echo:
    """A process, as far as its transport is one: answers with what it was called, and how."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.messages: list[Message] = []
        transport.on_call = self.take

    def take(self, message: Message) -> None:
        self.messages.append(message)
        body = codec.encode((message.name, message.slot, bytes(message.payload)))
        self.transport.post(message.src, wire.REPLY, body, slot=message.slot, ref=message.ref)


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[[int], Transport]]:
    made: list[Transport] = []

    def make(proc: int) -> Transport:
        made.append(Transport(proc, str(tmp_path)))
        return made[-1]

    yield make
    for transport in made:
        transport.close(0)


@pytest.fixture
def echoes(join: Callable[[int], Transport]) -> list[Echo]:
    found = [Echo(join(1)), Echo(join(2))]
    for each in found:
        each.transport.start()
        each.transport.reader.ensure_reading()
    return found


@pytest.fixture
def caller(join: Callable[[int], Transport]) -> Transport:
    transport = join(3)
    transport.start()
    return transport


def answered(pending: Pending) -> bool:
    return pending.transport.reader.wait(pending, time.monotonic() + T)


def values(gather: GatherReply) -> list[object]:
    return [body.value() for body in gather.bodies if body is not None]


def test_all_are_called_alike(echoes: list[Echo], caller: Transport) -> None:
    gather = GatherReply(caller, (1, 2))
    found = call(
        gather, [(1, 0), (2, 1)], b"noop", Encoded(b"args"), target=7, origin=5, context=b"\1",
        flags=wire.KEEP,
    )  # fmt: skip
    assert found is gather
    assert answered(gather)
    assert values(gather) == [(b"noop", 0, b"args"), (b"noop", 1, b"args")]
    message = echoes[1].messages[0]
    assert (message.target, message.origin, bytes(message.context), message.flags) == (7, 5, b"\1", wire.KEEP)


def test_each_may_get_arguments_of_its_own(echoes: list[Echo], caller: Transport) -> None:
    bodies = [(Encoded(b"a"), 0), (Encoded(b"b"), 0)]
    gather = call_each(GatherReply(caller, (1, 2)), [(1, 0), (2, 1)], b"add", bodies)
    assert answered(gather)
    assert values(gather) == [(b"add", 0, b"a"), (b"add", 1, b"b")]


@pytest.mark.parametrize("size", [0, 100, 3 << 20])
def test_one_is_called(echoes: list[Echo], caller: Transport, size: int) -> None:
    sent = Encoded(b"x" * min(size, 100), (memoryview(bytearray(size)),) if size > 100 else ())
    reply = call_one(OneReply(caller, (2,)), 2, b"one", sent, 0, 4, 9, 6, b"\2")
    assert answered(reply)
    assert reply.body is not None
    assert reply.body.value() == (b"one", 4, sent.payload)
    message = echoes[1].messages[0]
    assert (message.slot, message.target, message.origin, bytes(message.context)) == (4, 9, 6, b"\2")
    assert bool(message.table) == (size > 100)


def test_who_has_ended_before_is_not_waited_for(echoes: list[Echo], caller: Transport) -> None:
    caller.ends[9] = RankExit(proc=9, group="dev", rank=1, host="here", pid=0)
    gather = call(GatherReply(caller, (1, 9)), [(1, 0), (9, 1)], b"noop", Encoded(b""))
    assert answered(gather)
    assert list(gather.ends) == [1]
    for one in (
        call_one(OneReply(caller, (9,)), 9, b"noop", Encoded(b"")),
        call_each(OneReply(caller, (9,)), [(9, 0)], b"noop", [(Encoded(b""), 0)]),
    ):
        assert answered(one)
        assert one.end is caller.ends[9]


def test_nobody_is_left_waiting(echoes: list[Echo], caller: Transport) -> None:
    assert answered(call(GatherReply(caller, (1,)), [(1, 0)], b"noop", Encoded(b"")))
    assert caller.num_pending == 0
