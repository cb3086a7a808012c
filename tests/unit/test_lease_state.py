"""When a mesh ends by its lease, by an invented clock."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from monarch_nb._host.controller.lease_state import LOOK_S, LeaseState

LEASES = st.sampled_from([0.0, 0.5, 3.0, 60.0])


def test_a_mesh_without_a_lease_is_never_looked_at() -> None:
    lease = LeaseState(None, 0.0)
    assert lease.next_look_s(0.0) is None
    assert lease.look(1e9, is_held=False, has_name=False) == ""
    assert lease.left_s(1e9, is_held=False) is None


def test_a_mesh_without_its_name_ends_unless_somebody_is_there() -> None:
    lease = LeaseState(60.0, 0.0)
    assert lease.look(1.0, is_held=True, has_name=False) == ""
    assert "another mesh has its name" in lease.look(2.0, is_held=False, has_name=False)


def test_a_shorter_lease_is_looked_at_sooner_and_by_one_timer() -> None:
    lease = LeaseState(60.0, 0.0)
    assert lease.next_look_s(0.0) == LOOK_S
    assert lease.next_look_s(1.0) is None
    lease.idle_timeout_s = 3.0
    assert lease.next_look_s(1.0) == 3.0
    lease.look(4.0, is_held=True, has_name=True)
    assert lease.next_look_s(4.0) == 3.0
    lease.look(LOOK_S, is_held=True, has_name=True)  # what was planned first
    assert lease.next_look_s(LOOK_S) is None


def test_the_time_counts_from_when_somebody_was_last_seen_there() -> None:
    lease = LeaseState(60.0, 0.0)
    lease.look(5.0, is_held=True, has_name=True)  # by a cell, say, of which nobody tells when it ends
    assert lease.left_s(30.0, is_held=False) == 35.0


class AnyTime(RuleBasedStateMachine):
    """Clients come and go, the lease changes: the mesh lives while somebody is there, and ends soon after its
    time.
    """

    now = 0.0
    is_held = False
    left_at = 0.0

    @initialize(idle_timeout_s=st.none() | LEASES)
    def start(self, idle_timeout_s: float | None) -> None:
        self.lease = LeaseState(idle_timeout_s, self.now)
        self.looks: list[float] = []
        self.changed: list[float] = []
        self.ended_at: float | None = None
        self.plan()

    def plan(self) -> None:
        delay_s = self.lease.next_look_s(self.now)
        if delay_s is not None:
            self.looks.append(self.now + delay_s)
        recent = [when for when in self.changed if when >= self.now - LOOK_S - 1e-6]  # fires this very moment
        assert len(self.looks) <= 1 + len(recent), "timers add up"

    @precondition(lambda self: self.ended_at is None)
    @rule()
    def come(self) -> None:
        self.is_held = True

    @precondition(lambda self: self.ended_at is None and self.is_held)
    @rule()
    def go(self) -> None:
        self.is_held, self.left_at = False, self.now
        self.lease.begin_anew(self.now)

    @precondition(lambda self: self.ended_at is None)
    @rule(idle_timeout_s=LEASES)
    def change(self, idle_timeout_s: float) -> None:
        self.lease.idle_timeout_s, self.left_at = idle_timeout_s, self.now
        self.changed.append(self.now)
        self.lease.begin_anew(self.now)
        self.plan()

    @rule(seconds=st.sampled_from([0.01, 0.4, 3.0, 7.0, 59.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.looks and min(self.looks) <= until and self.ended_at is None:
            self.now = min(self.looks)
            self.looks.remove(self.now)
            left_s = self.lease.left_s(self.now, is_held=self.is_held)
            if self.lease.look(self.now, is_held=self.is_held, has_name=True):
                self.ended_at = self.now
                assert not self.is_held
                assert left_s == 0.0
            else:
                self.plan()
        self.now = until

    def teardown(self) -> None:
        if self.lease.idle_timeout_s is None or self.ended_at is not None:
            return
        if self.is_held:
            self.wait(200.0)
            assert self.ended_at is None, "ended while somebody was there"
            self.go()
        self.wait(200.0)
        assert self.ended_at is not None, "never ended"
        assert self.ended_at <= self.left_at + self.lease.idle_timeout_s + LOOK_S + 0.1


TestAnyTime = AnyTime.TestCase
TestAnyTime.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
