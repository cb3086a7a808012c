"""The actors of one process, with nothing around them but its sockets: who waits for mail is woken by it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
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
from monarch_nb._shape import Extent, encode_extent
from monarch_nb._transport.call import call_one
from monarch_nb._transport.pending import OneReply
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address, codec
from monarch_nb._wire import message as wire
from monarch_nb._wire.codec import Encoded
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
