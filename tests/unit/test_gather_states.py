"""Answers of one call, in any order with the ends of ranks: with no process and an invented clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monarch_nb._protocol.exits import RankExit
from monarch_nb._transport.pending import ERROR_GRACE_S, LOST_GRACE_S, Body, GatherReply
from monarch_nb._transport.transport import Transport
from monarch_nb._wire.message import ERROR

PROCS = (101, 102, 103, 102)  # a slice may name a rank twice


class Alarms:
    """Stands for the reader: notes who is to be called when."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        self.due.append((when, function))

    def notify(self, _pending: object) -> None:
        """Nobody is parked."""


class Counts:
    """Stands for a transport: counts what it's told."""

    def __init__(self) -> None:
        self.callback_lock = threading.Lock()
        self.reader = Alarms()
        self.unread: dict[int, Any] = {}
        self.on_dropped = None
        self.forgotten: list[int] = []
        self.untold: list[RankExit] = []

    def forget(self, ref: int) -> None:
        self.forgotten.append(ref)

    def on_unhandled_end(self, end: RankExit) -> None:
        self.untold.append(end)


class World:
    """One call, and a clock."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.transport = cast(Transport, self.counts)
        self.reply = GatherReply(self.transport, PROCS)
        self.reply.ref = 9
        self.now = 1000.0
        self.called = 0
        self.reply._callbacks = [self._call]

    def _call(self) -> None:
        self.called += 1

    def answer(self, slot: int, flags: int = 0) -> None:
        """A rank answers."""
        self.reply.deliver(slot, Body.plain(self.transport, flags, PROCS[slot], b""))

    def die(self, proc: int) -> None:
        """The end of a rank is heard of."""
        self.reply.lost(proc, RankExit(proc, "workers", 0, "here", 4711, signal=9))

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on, and alarms ring."""
        self.now += seconds
        alarms = self.counts.reader
        ringing = [function for when, function in alarms.due if when <= self.now]
        alarms.due = [each for each in alarms.due if each[0] > self.now]
        for function in ringing:
            function()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


def test_it_is_ready_when_all_have_answered_and_not_before(world: World) -> None:
    for slot in range(4):
        assert not world.reply.ready
        world.answer(slot)
    assert (world.reply.ready, world.called, world.counts.forgotten) == (True, 1, [9])


def test_an_error_gives_the_others_a_grace(world: World) -> None:
    world.answer(1, ERROR)
    world.pass_time(ERROR_GRACE_S - 0.01)
    assert not world.reply.ready
    world.answer(2)
    world.pass_time(0.02)
    assert world.reply.ready
    assert world.reply.failed == [1]
    assert [body is not None for body in world.reply.bodies] == [False, True, True, False]


def test_the_last_words_of_a_dead_rank_count_and_its_end_is_told_elsewhere(world: World) -> None:
    world.die(102)
    assert set(world.reply.ends) == {1, 3}
    world.answer(1)
    world.answer(3)
    assert [end.proc for end in world.counts.untold] == [102, 102]
    assert (world.reply.ends, world.reply.failed) == ({}, [])
    world.pass_time(LOST_GRACE_S)
    assert world.reply.ready, "the others had their grace nevertheless"


class AnyOrder(RuleBasedStateMachine):
    """Random answers and ends: it always becomes ready once, and each slot has an answer or an end."""

    @initialize()
    def start(self) -> None:
        self.world = World()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(time, "monotonic", lambda: self.world.now)
        self.answered: set[int] = set()
        self.dead: set[int] = set()

    @rule(slot=st.integers(0, 3), flags=st.sampled_from([0, 0, ERROR]))
    def answer(self, slot: int, flags: int) -> None:
        if not self.world.reply.ready:  # of what is ready, the transport knows nothing any more
            self.answered.add(slot)
            self.world.answer(slot, flags)

    @rule(proc=st.sampled_from(sorted(set(PROCS))))
    def die(self, proc: int) -> None:
        self.dead.add(proc)
        self.world.die(proc)

    @rule(seconds=st.sampled_from([0.001, LOST_GRACE_S, ERROR_GRACE_S]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @invariant()
    def books_agree(self) -> None:
        reply = self.world.reply
        has_answer = {slot for slot, body in enumerate(reply.bodies) if body is not None}
        assert has_answer == self.answered
        assert reply.num_left == len(PROCS) - len(has_answer)
        assert not has_answer & set(reply.ends), "an answer and an end"
        assert len(set(reply.failed)) == len(reply.failed), "failed twice"
        assert set(reply.ends) <= set(reply.failed)
        assert reply.ready or self.answered != set(range(len(PROCS)))
        assert self.world.called == len(self.world.counts.forgotten) == int(reply.ready)

    def teardown(self) -> None:
        for proc in PROCS:
            self.die(proc)
        self.world.pass_time(10 * ERROR_GRACE_S)
        assert self.world.reply.ready
        assert self.world.reply.at_work() == ()
        self.books_agree()
        self.patch.undo()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
