"""Who leads: what threads do to the reader, one step after the other in any order, with no thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest
import zmq
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch_nb._transport.reader import Reader


class Waiting:
    """A thread that waits, as the reader sees it."""

    def __init__(self, name: str, *, urgent: bool) -> None:
        self.name = name
        self.urgent = urgent
        self.ready = False
        self.park: threading.Lock | None = None
        self.due: float | None = None

    def __repr__(self) -> str:
        return self.name

    def expire(self) -> None:
        """Never due."""

    @property
    def is_parked(self) -> bool:
        """Whether its thread would stay blocked."""
        return self.park is not None and self.park.locked()


class NoMail:
    """Stands for a socket: who leads is decided without it."""

    def recv(self) -> bytes:
        raise AssertionError("nobody reads here")


def make_reader() -> Reader:
    """Return a reader that has nothing to read, and no thread."""
    return Reader(cast("zmq.Socket[bytes]", NoMail()), lambda _frame: None)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = make_reader()
    yield made
    made.close()


def test_the_first_who_waits_leads_and_the_next_is_parked(reader: Reader) -> None:
    first, second = Waiting("first", urgent=True), Waiting("second", urgent=True)
    assert reader._enter(first)
    assert not reader._enter(second)
    assert second.is_parked


def test_who_leaves_the_lead_appoints_one_who_waits_for_an_answer_and_no_idle_actor(reader: Reader) -> None:
    leader, idle, urgent = (Waiting("leader", urgent=True), Waiting("idle", urgent=False),
                            Waiting("urgent", urgent=True))  # fmt: skip
    for waiter in (leader, idle, urgent):
        reader._enter(waiter)
    reader._step_down()
    assert reader._leader is urgent
    assert (idle.is_parked, urgent.is_parked) == (True, False)


def test_the_lead_moves_to_an_idle_actor_with_its_message(reader: Reader) -> None:
    actor, other = Waiting("actor", urgent=False), Waiting("other", urgent=False)
    reader._enter(actor)
    reader._enter(other)
    other.ready = True
    assert reader._wake(other)
    reader._step_down(actor)
    assert reader._leader is None
    assert (actor.is_parked, other.is_parked) == (True, False)


def test_the_background_reader_gives_the_lead_to_who_has_asked_for_it(reader: Reader) -> None:
    assert reader._take_lead_if_free(-1)
    actor = Waiting("actor", urgent=False)
    reader._enter(actor)
    assert reader._hand_over()
    assert reader._leader is actor
    assert not actor.is_parked


def test_the_background_reader_keeps_the_lead_if_nobody_wants_it_any_more(reader: Reader) -> None:
    assert reader._take_lead_if_free(-1)
    actor = Waiting("actor", urgent=False)
    reader._enter(actor)
    reader.notify(actor)
    assert not reader._hand_over()
    assert reader._leader is reader._background_reader


def test_who_has_asked_for_the_lead_and_waits_no_more_gets_none(reader: Reader) -> None:
    assert reader._take_lead_if_free(-1)
    actor, other = Waiting("actor", urgent=False), Waiting("other", urgent=True)
    reader._enter(actor)
    reader._enter(other)
    assert not reader._leave_followers(actor)
    assert reader._successor is None
    assert reader._hand_over()
    assert reader._leader is other, "somebody must read for it"


class AnyOrder(RuleBasedStateMachine):
    """Each rule is what one thread does while it holds the lock. Somebody reads for who waits for an answer;
    nobody is forgotten.
    """

    waiters = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.reader = make_reader()
        self.all = [Waiting(f"urgent{i}", urgent=True) for i in range(2)]
        self.all.append(Waiting("idle", urgent=False))
        self.entered: set[int] = set()

    def leads(self, waiter: Waiting) -> bool:
        return self.reader._leader is waiter

    @rule(i=waiters)
    def begin_to_wait(self, i: int) -> None:
        """Or, woken without being ready, wait on."""
        waiter = self.all[i]
        if i not in self.entered or (not waiter.is_parked and not self.leads(waiter) and not waiter.ready):
            waiter.ready = waiter.ready and i in self.entered
            self.entered.add(i)
            assert self.reader._enter(waiter) == self.leads(waiter)

    @rule(i=waiters)
    def answer_comes(self, i: int) -> None:
        """The leader dispatches it; the lead doesn't move."""
        if self.reader._leader is not None and i in self.entered:
            self.all[i].ready = True
            self.reader._wake(self.all[i])

    @rule(i=waiters)
    def go_on(self, i: int) -> None:
        """A thread whose answer is there stops waiting."""
        waiter = self.all[i]
        if i in self.entered and waiter.ready and not waiter.is_parked:
            if self.reader._leave_followers(waiter):
                self.reader._step_down()
            self.entered.discard(i)

    @rule(i=waiters)
    def time_is_up(self, i: int) -> None:
        """A thread that waits doesn't any more, answer or not; it may lead."""
        if i in self.entered:
            if self.reader._leave_followers(self.all[i]):
                self.reader._step_down()
            self.all[i].park = None
            self.entered.discard(i)

    @rule(i=waiters)
    def move_the_lead(self, i: int) -> None:
        """An idle actor that leads goes back into line: a message was for another one."""
        if self.leads(self.all[i]) and not self.all[i].urgent:
            self.reader._step_down(self.all[i])

    @rule()
    def raise_in_waiters(self) -> None:
        self.reader.interrupt_waiters()

    @rule()
    def tick(self) -> None:
        """The background reader looks, after a tick in which nothing was read."""
        self.reader._take_lead_if_free(self.reader._turns)

    @precondition(lambda self: self.reader._leader is self.reader._background_reader)
    @rule()
    def background_reader_is_woken(self) -> None:
        self.reader._hand_over()

    @invariant()
    def each_is_in_one_place(self) -> None:
        followers = self.reader._followers
        assert len({id(f) for f in followers}) == len(followers), "in line twice"
        assert self.reader._leader not in followers, "leads, and is in line"
        for i, waiter in enumerate(self.all):
            assert waiter.is_parked == (waiter in followers), "parked for good, or in line and running"
            assert i in self.entered or (waiter not in followers and not self.leads(waiter)), "left behind"

    @invariant()
    def the_successor_waits(self) -> None:
        successor = self.reader._successor
        assert successor is None or successor in self.reader._followers

    @invariant()
    def somebody_reads_for_who_waits_for_an_answer(self) -> None:
        if any(f.urgent for f in self.reader._followers):
            assert self.reader._leader is not None

    def teardown(self) -> None:
        for i in list(self.entered):
            self.time_is_up(i)
        if self.reader._leader is self.reader._background_reader:
            assert not self.reader._hand_over()
        assert self.reader._followers == []
        assert self.reader._successor is None
        self.reader.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
