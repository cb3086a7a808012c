"""A fan-out costs the client one message per remote host; answers of one call come back together."""

from __future__ import annotations

import pytest
from sample_actors import Where

from monarch_nb._client import session
from monarch_nb._host.agent.router import Router
from monarch_nb._host.loop import Loop
from monarch_nb._wire import address
from monarch_nb._wire import message as wire
from monarch_nb._wire.local_sockets import LocalSender
from monarch_nb.job import ProcessJob

T = 60


def test_one_message_goes_to_each_far_host_and_one_comes_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = ProcessJob({"hosts": 2})
    where = job.state().hosts.spawn_procs({"gpus": 4}).spawn("where", Where)
    where.echo.call(0).get(T)
    sent, arrived = [], []
    transport = session.current().transport
    send, dispatch = LocalSender.send, transport.reader._dispatch
    monkeypatch.setattr(
        LocalSender, "send", lambda route, frame: (sent.append(wire.unpack(frame).kind), send(route, frame))
    )
    monkeypatch.setattr(
        transport.reader,
        "_dispatch",
        lambda frame: (arrived.append(wire.unpack(frame).kind), dispatch(frame))[1],
    )
    assert where.echo.call("same").get(T).reduce("equal") == "same"
    assert sent.count(wire.FANOUT) == 2
    assert wire.CALL not in sent
    # Together as far as they came within some milliseconds: never one by one and uncombined.
    assert wire.REPLY not in arrived
    assert 2 <= arrived.count(wire.COMBINED) <= 8

    arrived.clear()
    where.say_number.call().get(T)
    assert wire.REPLY not in arrived and wire.COMBINED in arrived, "it's so for those that print, too"
    shown = capfd.readouterr().out
    assert all(f"number {rank} speaks" in shown for rank in range(8)), "all was shown before the answer"
    monkeypatch.undo()
    job.kill()


class Wires:
    """A router whose messages are kept instead of sent."""

    def __init__(self) -> None:
        self.local: list[tuple[int, bytes]] = []
        self.far: list[tuple[int, bytes]] = []
        self.loop = Loop()
        self.router = Router(
            address.host_proc(1), self.loop,
            lambda dst, frame: self.local.append((dst, frame)),
            lambda host, frames: self.far.append((host, frames[0])),
        )  # fmt: skip
        inner = wire.pack(wire.CALL, src=CLIENT, dst=0, ref=9, name=b"f")
        receivers = [(rank, slot) for slot, rank in enumerate(RANKS)]
        self.router.accept(wire.pack_fanout(CLIENT, address.host_proc(1), receivers, inner), ())

    def answer(self, slot: int, payload: bytes, flags: int = 0, mark: int = 0) -> None:
        frame = wire.pack(
            wire.REPLY, src=RANKS[slot], dst=CLIENT, ref=9, slot=slot, flags=flags, origin=mark,
            payload=payload,
        )  # fmt: skip
        self.router.export(wire.unpack(frame))

    def combined(self) -> list[list[wire.Answer]]:
        return [wire.unpack_combined(wire.unpack(frame)) for _, frame in self.far]


CLIENT = 1 << 31
RANKS = [address.proc_id(1, n) for n in (1, 2, 3)]


def test_a_fan_out_is_multiplied_here() -> None:
    wires = Wires()
    assert [dst for dst, _ in wires.local] == RANKS
    assert [wire.unpack(frame).slot for _, frame in wires.local] == [0, 1, 2]


def test_equal_answers_go_once() -> None:
    wires = Wires()
    wires.answer(0, b"a")
    wires.answer(1, b"b")
    assert wires.far == []
    wires.answer(2, b"a")
    assert wires.combined() == [[wire.Answer(0, (0, 2), b"a"), wire.Answer(0, (1,), b"b")]]


def test_answers_of_ranks_that_have_printed_go_together_too() -> None:
    wires = Wires()
    wires.answer(0, b"a", mark=3)
    wires.answer(1, b"a")
    assert wires.router.holds_answers
    wires.answer(2, b"a", mark=1)
    assert not wires.router.holds_answers
    assert wires.combined() == [[wire.Answer(0, (0, 1, 2), b"a")]]
    ((_, frame),) = wires.far
    assert wire.combined_marks(wire.unpack(frame)) == [(RANKS[0], 3), (RANKS[2], 1)]


def test_errors_do_not_wait() -> None:
    wires = Wires()
    wires.answer(0, b"a")
    wires.answer(1, b"oh", wire.ERROR)
    assert wires.combined() == [[wire.Answer(0, (0,), b"a"), wire.Answer(wire.ERROR, (1,), b"oh")]]
    wires.answer(2, b"late")
    assert wires.combined()[1] == [wire.Answer(0, (2,), b"late")]


def test_nothing_overtakes_an_answer() -> None:
    wires = Wires()
    wires.answer(0, b"a")
    other = wire.pack(wire.REPLY, src=RANKS[0], dst=CLIENT, ref=77, payload=b"to a channel")
    wires.router.export(wire.unpack(other))
    assert [wire.unpack(frame).ref for _, frame in wires.far] == [9, 77]
