"""What is done about losses, and when, by an invented clock."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from monarch_nb._host.controller.heal_states import FIRST_DELAY_S, MAX_DELAY_S, TOGETHER_S, Losses, Turns
from monarch_nb._host.controller.registry import Policy
from monarch_nb._protocol.states import OnFailure


@pytest.mark.parametrize("on_failure", [OnFailure.STOP, OnFailure.CALL])
def test_nothing_is_done_by_itself_unless_the_policy_says_so(on_failure: OnFailure) -> None:
    assert Losses().lost("workers", Policy(on_failure), 0.0) is None


def test_ranks_that_die_together_are_healed_together() -> None:
    losses, policy = Losses(), Policy(OnFailure.HEAL)
    assert losses.lost("workers", policy, 0.0) == TOGETHER_S
    assert losses.lost("workers", policy, 0.01) is None
    assert losses.lost("others", Policy(OnFailure.HEAL), 0.01) == TOGETHER_S
    assert losses.due("workers", policy, is_running=True)
    assert losses.lost("workers", policy, 0.1) == FIRST_DELAY_S


def test_each_heal_within_the_window_waits_longer_until_none_is_left() -> None:
    losses, policy = Losses(), Policy(OnFailure.HEAL, max_restarts=9)
    delays = []
    for _ in range(9):
        delays.append(losses.lost("workers", policy, 0.0))
        assert losses.due("workers", policy, is_running=False)
    assert delays == [TOGETHER_S, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, MAX_DELAY_S, MAX_DELAY_S]
    notice = losses.lost("workers", policy, policy.window_s - 1)
    assert notice == "not healed: 9 heals in 600 s are the limit (max_restarts)"
    assert losses.lost("workers", policy, policy.window_s) == TOGETHER_S, "they're too long ago to count"


def test_a_group_shrinks_when_its_cells_have_ended() -> None:
    losses, policy = Losses(), Policy(OnFailure.SHRINK)
    losses.lost("workers", policy, 0.0)
    assert not losses.due("workers", policy, is_running=True)
    assert losses.lost("workers", policy, 0.0) is None, "it's still about to shrink"
    assert losses.due("workers", policy, is_running=False)


class AnyTurns(RuleBasedStateMachine):
    """Heals and resizes of three groups: each runs once, one at a time for a group, in its order."""

    groups = st.sampled_from("abc")

    def __init__(self) -> None:
        super().__init__()
        self.turns: Turns[int] = Turns()
        self.expected: dict[str, deque[int]] = {name: deque() for name in "abc"}
        self.running: dict[str, int] = {}
        self.count = 0

    @rule(group=groups)
    def add(self, group: str) -> None:
        self.count += 1
        self.expected[group].append(self.count)
        if self.turns.add(group, self.count):
            assert group not in self.running, "two at once"
            self.running[group] = self.expected[group].popleft()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[group]
        following = self.turns.end_turn(group)
        assert following == (self.expected[group].popleft() if self.expected[group] else None)
        if following is not None:
            self.running[group] = following

    def teardown(self) -> None:
        for group in list(self.running):
            while self.turns.end_turn(group) is not None:
                self.expected[group].popleft()
        assert not any(self.expected.values()), "one has never had its turn"
        assert self.turns._turns == {}, "something is left"


TestAnyTurns = AnyTurns.TestCase
TestAnyTurns.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
