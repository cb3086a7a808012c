"""What is done before hosts are taken away, by an invented clock."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monarch_nb._host.controller.time_limit import LOOK_S
from monarch_nb._host.controller.time_limit_state import CLOSE_S, OVER_S, SAVE_S, Step, TimeLimitState

BOTH = [Step.TELL, Step.SAVE]


def test_a_mesh_without_a_limit_is_never_looked_at() -> None:
    limit = TimeLimitState()
    assert limit.next_s(0.0) is None
    assert limit.due(1e9) == []
    assert limit.is_up(1e9) is None
    assert not limit.is_closing(1e9)


def test_without_notice_nothing_is_done_and_cells_are_taken_to_the_end() -> None:
    limit = TimeLimitState()
    limit.set(1000.0, 0.0)
    limit.set_notice(None)
    assert (limit.due(999.0), limit.next_s(0.0), limit.is_closing(999.0)) == ([], None, False)


def test_a_limit_that_is_near_when_it_is_set_is_told_once_and_states_are_saved_once() -> None:
    limit = TimeLimitState()
    limit.set(1000.0, 950.0)
    assert limit.due(950.0) == BOTH
    assert (limit.due(951.0), limit.next_s(951.0)) == ([], None)


def test_states_are_saved_again_shortly_before_the_limit() -> None:
    limit = TimeLimitState()
    limit.set(1000.0, 0.0)
    assert limit.due(400.0) == BOTH
    assert limit.next_s(400.0) == 600.0 - SAVE_S
    assert limit.due(1000.0 - SAVE_S) == BOTH
    assert limit.next_s(1000.0 - SAVE_S) is None


def test_more_time_has_the_steps_done_again_when_they_are_due_again() -> None:
    limit = TimeLimitState()
    limit.set(1000.0, 0.0)
    limit.due(400.0)
    limit.set(1010.0, 405.0)  # 5 s before the notice of the new limit
    assert limit.due(405.0) == []
    assert limit.due(410.0) == BOTH


def test_who_sets_the_notice_is_told_at_once_if_the_limit_is_that_near() -> None:
    limit = TimeLimitState()
    limit.set(1000.0, 500.0)
    assert limit.due(500.0) == BOTH
    limit.set_notice(limit.notice_s)
    assert limit.due(501.0) == BOTH


def test_an_end_is_put_down_to_the_limit_shortly_before_it_and_for_minutes_after() -> None:
    limit = TimeLimitState()
    limit.set(1000.0, 0.0)
    times = (999.0 - CLOSE_S, 1000.0 - CLOSE_S, 1000.0 + OVER_S, 1001.0 + OVER_S)
    assert [limit.is_up(now) for now in times] == [False, True, True, False]
    assert [limit.is_closing(now) for now in (999.0 - CLOSE_S, 1000.0 - CLOSE_S, 1001.0)] == [
        False,
        True,
        False,
    ]


class AnyLimit(RuleBasedStateMachine):
    """The limit is moved, the notice is changed, the machine sleeps: before each end, the steps are taken at
    each of the two moments that somebody looks after, and not twice.
    """

    @initialize()
    def start(self) -> None:
        self.now, self.look_at = 0.0, None
        self.limit = TimeLimitState()
        self.ahead: dict[str, bool] = {}
        self.due: set[str] = set()

    def moments(self) -> dict[str, float]:
        """Return when the steps are due: at the notice, and once more near the end."""
        ends_at, notice_s = self.limit.ends_at, self.limit.notice_s
        if ends_at is None or notice_s is None:
            return {}
        return {"first": ends_at - notice_s, "last": ends_at - min(SAVE_S, notice_s / 2)}

    def note_moments(self) -> None:
        """Note which moments have come that lay ahead before, or weren't there."""
        moments = self.moments()
        self.due = {name for name in self.due if name in moments and moments[name] <= self.now}
        self.due |= {
            name for name, when in moments.items() if when <= self.now and self.ahead.get(name, True)
        }
        self.ahead = {name: self.now < when for name, when in moments.items()}

    def look(self) -> None:
        self.note_moments()
        if self.limit.ends_at is not None and self.now < self.limit.ends_at:
            assert self.limit.due(self.now) == (BOTH if self.due else [])
            self.due.clear()
        assert self.limit.due(self.now) == []
        next_s = self.limit.next_s(self.now)
        self.look_at = None if next_s is None else self.now + min(next_s, LOOK_S) + 0.01

    @rule(left_s=st.none() | st.sampled_from([0.0, 5.0, 100.0, 130.0, 500.0, 700.0, 5000.0]))
    def set_limit(self, left_s: float | None) -> None:
        self.limit.set(None if left_s is None else self.now + left_s, self.now)
        self.look()

    @rule(notice_s=st.none() | st.sampled_from([0.0, 1.0, 60.0, 600.0, 3600.0]))
    def set_notice(self, notice_s: float | None) -> None:
        self.limit.set_notice(notice_s)
        self.ahead.clear()
        self.look()

    @rule(seconds=st.sampled_from([0.5, 20.0, 110.0, 480.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.look_at is not None and self.look_at <= until:
            self.now = self.look_at
            self.look()
        self.now = until

    @rule(seconds=st.sampled_from([20.0, 480.0, 4000.0]))
    def sleep(self, seconds: float) -> None:
        """Timers of a machine that sleeps are late."""
        self.now += seconds
        if self.look_at is not None and self.look_at <= self.now:
            self.look()

    @invariant()
    def somebody_looks_when_the_next_moment_comes(self) -> None:
        ahead = [when for when in self.moments().values() if self.now < when]
        if ahead:
            assert self.look_at is not None
            assert self.look_at <= max(self.now, min(ahead)) + 0.01


TestAnyLimit = AnyLimit.TestCase
TestAnyLimit.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
