"""One way to make a call, over real sockets: who waits is known first, and hears of ends that came before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.programs import Status
from monarch_nb._transport.call import call, call_each, call_one
from monarch_nb._transport.pending import Arrivals, GatherReply, OneReply, Pending
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.message import Message
from monarch_nb.actor.future import Future
from monarch_nb.exceptions import SupervisionError

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
        flags = wire.ERROR if message.name == b"fail" else 0
        self.transport.post(message.src, wire.REPLY, body, flags=flags, slot=message.slot, ref=message.ref)


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
    caller.ends[9] = end_of(9, 1)
    gather = call(GatherReply(caller, (1, 9)), [(1, 0), (9, 1)], b"noop", Encoded(b""))
    assert answered(gather)
    assert list(gather.ends) == [1]
    for one in (
        call_one(OneReply(caller, (9,)), 9, b"noop", Encoded(b"")),
        call_each(OneReply(caller, (9,)), [(9, 0)], b"noop", [(Encoded(b""), 0)]),
    ):
        assert answered(one)
        assert one.end is caller.ends[9]


def end_of(proc: int, rank: int) -> RankExit:
    return RankExit(proc=proc, group="dev", rank=rank, host="here", pid=0)


def test_a_restarted_process_does_not_get_what_was_for_its_predecessor(
    join: Callable[[int], Transport], echoes: list[Echo], caller: Transport
) -> None:
    """One that listens already, and one that begins to listen later."""
    caller.ends[2], caller.ends[9] = end_of(2, 1), end_of(9, 1)
    for proc in (2, 9):
        gather = GatherReply(caller, (1, proc))
        assert answered(call(gather, [(1, 0), (proc, 1)], b"noop", Encoded(b"")))
        assert list(gather.ends) == [1]
        one = OneReply(caller, (proc,))
        assert answered(call_one(one, proc, b"noop", Encoded(b"")))
        large = OneReply(caller, (proc,))
        assert answered(call_one(large, proc, b"noop", Encoded(b"", (memoryview(bytearray(3 << 20)),))))
        each = OneReply(caller, (proc,))
        assert answered(call_each(each, [(proc, 0)], b"noop", [(Encoded(b""), 0)]))
        asked = caller.request(proc, Status())
        assert answered(asked)
        assert one.end is large.end is each.end is asked.end is caller.ends[proc]
    echoes.append(Echo(join(9)))
    echoes[2].transport.start()
    echoes[2].transport.reader.ensure_reading()
    caller.ends.clear()
    for proc in (2, 9):
        assert answered(call_one(OneReply(caller, (proc,)), proc, b"last", Encoded(b"")))
    assert [[m.name for m in echo.messages] for echo in echoes[1:]] == [[b"last"]] * 2


def test_a_stream_takes_an_answer_that_comes_after_the_end(echoes: list[Echo], caller: Transport) -> None:
    arrivals = Arrivals(caller, (1, 2, 9))
    end = end_of(9, 2)
    arrivals.lost(9, end)
    arrivals.lost(9, end)
    assert arrivals.handles_end(end_of(2, 1))
    assert not arrivals.handles_end(end)
    ref = caller.expect(arrivals)
    for slot, proc in ((2, 9), (0, 1), (1, 2)):
        echoes[1].transport.post(caller.me, wire.REPLY, codec.encode(proc), slot=slot, ref=ref)
    assert all(answered(reply) for reply in arrivals.replies)
    assert {r.slot: r.body.value() for r in arrivals.replies if r.body is not None} == {0: 1, 1: 2, 2: 9}


@pytest.mark.parametrize("others", [False, True])
def test_who_has_dropped_its_future_reports_no_end(caller: Transport, others: bool) -> None:
    """One future reads the answer; or another was made of it, which may be left alone."""
    dropped: list[tuple[Pending, str]] = []
    caller.on_dropped = lambda pending, what: dropped.append((pending, what))

    def ask(proc: int) -> Future[None]:
        reply = OneReply(caller, (proc,))
        reply.sole_reader = "dev.step"
        caller.expect(reply)
        future: Future[None] = Future(reply, one_failure, "dev.step", is_sole_reader=True)
        return future.then(lambda value: value) if others else future

    held = ask(8)
    for proc in (8, 9):
        ask(proc)  # nobody reads it
    assert caller._take_end(end_of(8, 1)).handled
    assert not caller._take_end(end_of(9, 2)).handled
    with pytest.raises(SupervisionError):
        held.get(T)
    wait_until(lambda: not caller.num_pending and len(dropped) == 2, "the others are over")
    found = [pending.end for pending, _ in dropped if isinstance(pending, OneReply) and pending.ready]
    assert found == [caller.ends[8], caller.ends[9]]
    assert {what for _, what in dropped} == {"" if others else "dev.step"}
    assert not caller.unread


def test_a_failure_that_was_dropped_is_told_with_its_answer(echoes: list[Echo], caller: Transport) -> None:
    dropped: list[tuple[Pending, str]] = []
    caller.on_dropped = lambda pending, what: dropped.append((pending, what))

    def ask() -> Future[None]:
        reply = OneReply(caller, (1,))
        reply.sole_reader = "dev.step"
        future: Future[None] = Future(reply, one_failure, "dev.step", is_sole_reader=True)
        call_one(reply, 1, b"fail", Encoded(b""))
        return future

    read, left, quiet, known, later = ask(), ask(), ask(), ask(), ask()
    quiet.drop()
    wait_until(known.done, "the answer is there")
    known.drop()  # also of an answer that has come
    for each in (read, left, quiet):
        wait_until(each.done, "the answer is there")
    with pytest.raises(SupervisionError):
        read.get(T)
    del read, left, quiet, known, each
    [(pending, what)] = dropped
    assert isinstance(pending, OneReply) and pending.body is not None and pending.body.flags & wire.ERROR
    assert what == "dev.step"
    assert later.exception(T) is not None and not caller.unread


def one_failure(reply: Pending) -> None:
    raise SupervisionError("it has failed")


def test_nobody_is_left_waiting(echoes: list[Echo], caller: Transport) -> None:
    assert answered(call(GatherReply(caller, (1,)), [(1, 0)], b"noop", Encoded(b"")))
    assert caller.num_pending == 0
