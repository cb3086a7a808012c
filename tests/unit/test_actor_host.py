"""The actors of one process, with nothing around them but its sockets: who waits for mail is woken by it."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from processes import PATIENCE_S
from waiting import wait_until

from monarch_nb._protocol import calls
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.failure import ActorFailed, Failure
from monarch_nb._runtime import actor_host
from monarch_nb._runtime.actor_host import ActorHost
from monarch_nb._runtime.actors import ActorRunner
from monarch_nb._runtime.inbox import Inbox
from monarch_nb._shape import Extent, encode_extent
from monarch_nb._transport.call import call_one
from monarch_nb._transport.pending import OneReply
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address, codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
from monarch_nb._wire.message import Message
from monarch_nb.actor import Actor, endpoint

ID = 7


class Told(Actor):
    def __init__(self) -> None:
        self.failures: list[str] = []

    @endpoint
    def answer(self) -> int:
        return 42

    def __supervise__(self, failure: Any) -> bool:
        self.failures.append(str(failure))
        return True


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    made = Transport(address.new_client_id(), str(tmp_path))
    yield made
    made.close()


def _call(transport: Transport, name: bytes, body: Encoded, flags: int = 0) -> OneReply:
    context = encode_extent(Extent([], []))
    return call_one(
        OneReply(transport, (transport.me,)), transport.me, name, body, flags, target=ID, context=context
    )


def _spawn(transport: Transport) -> OneReply:
    spec = {
        "class": Told, "args": (), "kwargs": {}, "name": "told", "creator": (transport.me, 0),
        "creator_instance": None, "mesh": None, "proc_mesh": None,
    }  # fmt: skip
    return _call(transport, calls.SPAWN, codec.encode(spec))


def _end(host: ActorHost) -> None:
    runner = host.end_actor(ID, None)
    assert runner is not None
    runner.thread.join(PATIENCE_S)
    assert not runner.thread.is_alive()


def _is_answered(reply: OneReply) -> bool:
    return reply.transport.reader.wait(reply, time.monotonic() + PATIENCE_S)


def _waits(runner: ActorRunner) -> bool:
    """Say whether an actor's thread is parked until mail comes, or reads the socket until then."""
    reader = runner.host.transport.reader
    return runner.inbox in reader._followers or runner.inbox is reader._leader


class _Quick(ActorRunner):
    """One whose thread waits for mail before its maker goes on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        wait_until(lambda: _waits(self), "an actor that waits for mail")


def test_a_call_that_came_before_its_actor_wakes_it(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's call may overtake the message by which an actor of another process spawns the callee."""
    monkeypatch.setattr(actor_host, "ActorRunner", _Quick)
    host = ActorHost(transport)
    transport.start()
    early = _call(transport, b"answer", Encoded(b""), wire.EMPTY)
    _spawn(transport)
    assert _is_answered(early)
    assert early.body is not None and early.body.value() == 42
    _end(host)


def test_news_of_another_mesh_wakes_an_actor(transport: Transport, tmp_path: Path) -> None:
    """An actor that owns something in a mesh in which its process is a guest waits for mail in its own."""
    host = ActorHost(transport)
    transport.start()
    assert _is_answered(_spawn(transport))
    wait_until(lambda: _waits(host.actors[ID]), "an actor that waits for mail")
    (tmp_path / "other").mkdir()
    guest = Transport(transport.me, str(tmp_path / "other"))
    guest.on_call = host.on_guest_call
    guest.start()
    body = Encoded(encode(ActorFailed(9, Failure("ValueError", "no"))))
    guest.post(guest.me, wire.CALL, body, target=ID, name=calls.SUPERVISE)
    failures = host.actors[ID].instance.failures
    assert "no" in wait_until(lambda: failures, "an actor that is told")[0]
    guest.close()
    _end(host)


class _Noted:
    """A runner that only takes mail."""

    def __init__(self, *_: Any) -> None:
        self.inbox: Inbox[Message] = Inbox()


class _Early:
    """A process without its actor so far: calls come, timers wait to be run, and refusals are noted."""

    def __init__(self, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(actor_host, "ActorRunner", _Noted)
        self.timers: list[Callable[[], None]] = []
        self.refused: list[int] = []
        monkeypatch.setattr(transport.reader, "call_at", lambda _when, call: self.timers.append(call))
        monkeypatch.setattr(transport, "post", lambda *_, **fields: self.refused.append(fields["ref"]))
        self.host = ActorHost(transport)

    def take(self, name: bytes, ref: int = 0) -> None:
        """Have a message come."""
        me = self.host.transport.me
        self.host.on_call(wire.unpack(wire.pack(wire.CALL, src=me, dst=me, target=ID, name=name, ref=ref)))

    def delivered(self) -> list[int]:
        return [message.ref for message in self.host.actors[ID].inbox.waiting()]


def _interrupted(at: int, call: Callable[[], None], action: Callable[[], None]) -> bool:
    """Run `call`, and `action` before its bytecode number `at`, as another thread might; False if it has no
    more so many. All bytecodes of `ActorHost` count.
    """
    numbers = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != actor_host.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(numbers) == at:
            action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return next(numbers) > at


def test_a_call_is_not_given_up_together_with_an_earlier_one(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = _Early(transport, monkeypatch)
    early.take(b"answer", 1)
    early.take(b"answer", 2)
    early.timers[0]()
    early.take(calls.SPAWN)
    early.timers[1]()
    assert (early.refused, early.delivered()) == ([1], [2])


def test_each_early_call_is_answered_once_whenever_one_is_given_up(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer's thread isn't the one that takes messages."""
    for at in itertools.count():
        early = _Early(transport, monkeypatch)
        early.take(b"answer", 1)

        def come(early: _Early = early) -> None:
            early.take(b"answer", 2)
            early.take(calls.SPAWN)

        reached = _interrupted(at, come, early.timers[0])
        assert sorted(early.refused + early.delivered()) == [1, 2], f"at bytecode {at}"
        if not reached:
            break
    assert at > 50
