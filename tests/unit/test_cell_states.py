"""The states of cells, with no process and an invented clock: what follows from each event, and that any
order of events leaves nothing behind.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from monarch_nb._host.controller import cell_events as do
from monarch_nb._host.controller.cell_events import (
    Aborted,
    CellNotice,
    Effect,
    EndedWell,
    EndedWith,
    EndWanted,
    Event,
    GroupsRemade,
    MeshEnds,
    RankGone,
    StacksFound,
    Submitted,
    TellDone,
)
from monarch_nb._host.controller.cell_states import GRACE_S, CellStates
from monarch_nb._host.controller.escalation import ABORT_S, INTERRUPT_S
from monarch_nb._protocol.cells import CellFailure, CellMessage, CellOver, CellWaits, RankDone
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.states import CellStatus, EndReason

GROUP = "workers"
NUM_RANKS = 3
PROCS = {rank: 100 + rank for rank in range(NUM_RANKS)}


class Ranks:
    """What is known about ranks."""

    def __init__(self) -> None:
        self.ends: dict[int, RankExit] = {}
        self.attended: set[int] = set()

    def end_of(self, proc: int) -> RankExit | None:
        return self.ends.get(proc)

    def is_attended(self, proc: int) -> bool:
        return proc in self.attended

    def living_of(self, group: str) -> dict[int, int]:
        assert group == GROUP
        return {rank: proc for rank, proc in PROCS.items() if proc not in self.ends}


class World:
    """Ranks, a clock, and an executor that notes what it's told to do."""

    def __init__(self) -> None:
        self.ranks = Ranks()
        self.now = 0.0
        self.states = CellStates(self.ranks, lambda: self.now)
        self.done: list[Effect] = []
        self.over: dict[int, CellOver] = {}
        self.sent: dict[int, list[int]] = {}
        """Numbers of the cells that ranks have been sent and haven't answered, by proc."""
        self.answers: list[Event] = []
        """What must come sometime: answers of ranks, of those asked for stacks, and so on."""
        self._timers: list[tuple[float, int, Event]] = []
        self._count = itertools.count()

    def happens(self, event: Event) -> list[Effect]:
        """Take an event; return what was done."""
        effects = self.states.handle(event)
        for effect in effects:
            self._do(effect)
        self.done += effects
        return effects

    def _do(self, effect: Effect) -> None:
        match effect:
            case do.Send():
                for proc, _ in effect.receivers:
                    self.sent.setdefault(proc, []).append(effect.n)
            case do.After():
                heapq.heappush(self._timers, (self.now + effect.delay_s, next(self._count), effect.event))
            case do.Shortly():
                heapq.heappush(self._timers, (self.now + 0.01, next(self._count), effect.event))
            case do.Abort():
                self.answers.append(Aborted(effect.n, len(effect.procs)))
            case do.Look():
                self.answers.append(StacksFound(effect.n, {r: {"how": "asked"} for r in effect.procs}))
            case do.Remake():
                self.answers.append(GroupsRemade(effect.n, "made anew"))
            case do.Over():
                assert effect.n not in self.over, "told twice"
                self.over[effect.n] = effect.summary

    def answer(self, rank: int, failure: str = "", n: int = 0) -> list[Effect]:
        """A rank answers the oldest cell that it was sent, or a certain one."""
        proc = PROCS[rank]
        n = n or self.sent[proc][0]
        self.sent[proc].remove(n)
        if not failure:
            return self.happens(EndedWell(n, rank, 0.5))
        error = CellFailure(rank, failure, "no", self.now)
        body = json.dumps({"status": "error", "ename": failure, "evalue": "no", "when": self.now}).encode()
        return self.happens(EndedWith(n, rank, 0.5, body, error))

    def die(self, rank: int) -> list[Effect]:
        """A rank's process ends."""
        proc = PROCS[rank]
        end = self.ranks.ends[proc] = RankExit(proc, GROUP, rank, "here", 4711, signal=9)
        self.sent.pop(proc, None)
        return self.happens(RankGone(end))

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on, and timers run."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, event = heapq.heappop(self._timers)
            self.happens(event)
        self.now = until

    def answer_all(self) -> None:
        """Let all come that must."""
        while self.answers:
            self.happens(self.answers.pop(0))

    def submit(self, n: int, *ranks: int) -> list[Effect]:
        """Somebody runs a cell."""
        return self.happens(Submitted(n, GROUP, {r: PROCS[r] for r in ranks or PROCS}))

    def of(self, kind: type[Effect]) -> list[Any]:
        """Return what was done of one kind."""
        return [effect for effect in self.done if isinstance(effect, kind)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_cell_runs_and_ends_well(world: World) -> None:
    world.submit(1)
    (send,) = world.of(do.Send)
    assert send == do.Send(1, [(proc, rank) for rank, proc in PROCS.items()])
    for rank in PROCS:
        assert 1 not in world.over
        world.answer(rank)
    assert world.over[1].status == CellStatus.OK
    assert world.over[1].seconds == dict.fromkeys(PROCS, 0.5)
    assert world.states.num_running == 0


def test_those_who_watch_are_told_together_of_ranks_that_have_ended_and_not_after_the_end(
    world: World,
) -> None:
    world.submit(1)
    world.answer(0)
    world.answer(1)
    assert not world.of(do.Tell)
    world.pass_time(1)
    assert world.of(do.Tell) == [do.Tell(1, RankDone(0, 0.5)), do.Tell(1, RankDone(1, 0.5))]
    world.answer(2)
    world.pass_time(1)
    assert len(world.of(do.Tell)) == 2, "the summary tells"


def test_who_comes_later_hears_what_was_said_once(world: World) -> None:
    world.submit(1)
    world.submit(2)
    world.happens(CellNotice(PROCS[0], "rank 0 does not react"))
    world.answer(0)
    sent = world.happens(TellDone(1))
    assert sent == [do.Tell(1, RankDone(0, 0.5))]
    history = world.states.history(1)
    assert [type(each).__name__ for each in history] == ["CellBegan", "RankDone", "CellMessage"]
    assert CellWaits("waits for cell #1") in world.states.history(2)
    world.pass_time(1)
    assert world.of(do.Tell).count(do.Tell(1, RankDone(0, 0.5))) == 1


def test_the_next_cell_begins_on_a_rank_as_soon_as_that_is_free(world: World) -> None:
    world.submit(1)
    assert do.Tell(2, CellWaits("waits for cell #1")) in world.submit(2)
    assert do.Send(2, [(PROCS[1], 1)]) in world.answer(1)
    assert world.states.at(PROCS[1]) == (2, 0.0)
    assert world.states.at(PROCS[0]) == (1, 0.0)
    world.answer(0)
    assert do.Tell(2, CellWaits("")) in world.answer(2)


def test_an_error_gives_the_others_a_grace_and_then_interrupts_them(world: World) -> None:
    world.submit(1)
    world.answer(0, "ValueError")
    world.pass_time(GRACE_S - 0.1)
    assert not world.of(do.Interrupt)
    world.pass_time(0.2)
    assert world.of(do.Interrupt) == [do.Interrupt(1, {1: PROCS[1], 2: PROCS[2]})]
    world.answer(1, "KeyboardInterrupt")
    world.answer(2, "KeyboardInterrupt")
    summary = world.over[1]
    assert (summary.status, summary.reason) == (CellStatus.ERROR, EndReason.FAILURE)
    assert (summary.stopped, [f.rank for f in summary.failures]) == ([1, 2], [0])
    written = {effect.rank: json.loads(effect.body)["status"] for effect in world.of(do.Write)}
    assert written == {0: "error", 1: "interrupted", 2: "interrupted"}


def test_a_dead_rank_counts_as_a_failure(world: World) -> None:
    world.submit(1)
    world.die(2)
    world.pass_time(GRACE_S)
    assert world.of(do.Interrupt)
    world.answer(0)
    world.answer(1)
    assert [(f.rank, f.type) for f in world.over[1].failures] == [(2, "lost")]


def test_a_cell_for_dead_ranks_only_is_over_at_once(world: World) -> None:
    world.die(0)
    world.submit(1, 0)
    assert world.over[1].status == CellStatus.ERROR
    assert not world.of(do.Send)


def test_each_step_of_an_escalation_has_its_time(world: World) -> None:
    world.submit(1)
    world.happens(EndWanted(1, EndReason.USER))
    assert world.of(do.Interrupt)
    world.pass_time(INTERRUPT_S - 0.1)
    assert not world.of(do.Abort)
    world.pass_time(0.2)
    assert world.of(do.Abort) == [do.Abort(1, PROCS)]
    world.answer_all()
    world.pass_time(ABORT_S - 0.3)
    assert not world.of(do.Look)
    world.pass_time(0.3)
    world.answer_all()
    assert world.over[1].unfinished == {rank: {"how": "asked"} for rank in PROCS}
    assert (world.over[1].status, world.over[1].reason) == (CellStatus.INTERRUPTED, EndReason.USER)


def test_who_interrupts_again_takes_the_next_step_at_once(world: World) -> None:
    world.submit(1)
    for _ in range(5):
        world.happens(EndWanted(1, EndReason.USER))
    assert [len(world.of(kind)) for kind in (do.Interrupt, do.Abort, do.Look)] == [1, 1, 1]
    world.pass_time(100)
    assert [len(world.of(kind)) for kind in (do.Interrupt, do.Abort, do.Look)] == [1, 1, 1]


@pytest.mark.parametrize("reason", [EndReason.FAILURE, "timeout 3"])
def test_a_time_out_does_not_hurry_an_escalation_that_has_begun(world: World, reason: str) -> None:
    world.submit(1)
    world.happens(EndWanted(1, EndReason.USER))
    world.happens(EndWanted(1, reason))
    assert not world.of(do.Abort)
    world.answer(0, "KeyboardInterrupt")
    world.answer(1, "KeyboardInterrupt")
    world.answer(2, "KeyboardInterrupt")
    assert world.over[1].reason == EndReason.USER


def test_a_rank_in_the_debugger_is_left_alone_unless_its_user_says_so(world: World) -> None:
    world.submit(1)
    world.ranks.attended.add(PROCS[0])
    world.happens(EndWanted(1, "timeout 1"))
    world.pass_time(60)
    assert not world.of(do.Interrupt)
    world.ranks.attended.clear()
    world.pass_time(GRACE_S)
    assert len(world.of(do.Interrupt)) == 1


def test_groups_are_made_anew_when_some_were_aborted_however_fast_the_cell_was(world: World) -> None:
    world.submit(1)
    world.happens(EndWanted(1, EndReason.USER))
    world.happens(EndWanted(1, EndReason.USER))
    for rank in PROCS:
        world.answer(rank, "RuntimeError")
    assert 1 not in world.over
    assert not world.of(do.Remake), "nobody knows yet whether anything was aborted"
    world.answer_all()
    assert world.over[1].messages[-1] == "made anew"
    assert not world.over[1].failures, "what they raise comes of the abort"


def test_no_group_is_made_anew_when_none_was_aborted(world: World) -> None:
    world.submit(1)
    world.happens(EndWanted(1, EndReason.USER))
    world.happens(EndWanted(1, EndReason.USER))
    world.answers.clear()
    world.happens(Aborted(1, 0))
    for rank in PROCS:
        world.answer(rank, "KeyboardInterrupt")
    assert 1 in world.over
    assert not world.of(do.Remake)


def given_up(world: World, n: int, *ranks: int) -> None:
    """Run a cell that doesn't end, and give it up."""
    world.submit(n, *ranks)
    for _ in range(3):
        world.happens(EndWanted(n, EndReason.USER))


def test_nothing_begins_on_a_rank_that_hangs_however_many_cells_wait_there(world: World) -> None:
    given_up(world, 1, 0)
    for n in (2, 3, 4):
        world.submit(n, 0)
    world.answer_all()
    assert set(world.over) == {1, 2, 3, 4}
    assert world.sent[PROCS[0]] == [1]
    assert world.over[3].messages == ["cancelled: rank 0 hangs in cell #1"]
    assert world.states.stuck_in(PROCS[0]) == 1
    assert not world.states.is_free(PROCS[0])


def test_a_rank_that_comes_out_of_a_cell_that_was_given_up_is_free_again(world: World) -> None:
    given_up(world, 1, 0, 1)
    world.answer_all()
    world.answer(0)
    assert [world.states.stuck_in(PROCS[r]) for r in (0, 1)] == [0, 1]
    world.die(1)
    assert world.states.stuck_in(PROCS[1]) == 0
    assert list(world.over) == [1]


def test_when_the_mesh_ends_all_cells_do_and_nobody_is_told_of_each(world: World) -> None:
    world.submit(1)
    world.submit(2)
    world.answer(0)
    world.happens(MeshEnds("was stopped"))
    assert [effect.tells_watchers for effect in world.of(do.Over)] == [False, False]
    assert {f.message for f in world.over[1].failures} == {"the mesh was stopped"}
    world.pass_time(100)
    world.answer_all()
    assert world.states.num_running == 0


class AnyOrder(RuleBasedStateMachine):
    """Random events. A cell always ends, nobody is told twice, nothing is left."""

    numbers: Bundle[int] = Bundle("numbers")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.count = itertools.count(1)
        self.submitted: set[int] = set()

    @rule(target=numbers, ranks=st.sets(st.sampled_from(list(PROCS)), min_size=1))
    def submit(self, ranks: set[int]) -> int:
        n = next(self.count)
        free = {r for r in ranks if not self.world.states.stuck_in(PROCS[r])}  # others are refused
        if free:
            self.submitted.add(n)
            self.world.submit(n, *sorted(free))
        return n

    @rule(
        rank=st.sampled_from(list(PROCS)),
        failure=st.sampled_from(["", "", "ValueError", "KeyboardInterrupt"]),
    )
    def answer(self, rank: int, failure: str) -> None:
        if self.world.sent.get(PROCS[rank]):
            self.world.answer(rank, failure)

    @rule(n=numbers, rank=st.sampled_from(list(PROCS)))
    def answer_late_or_twice(self, n: int, rank: int) -> None:
        if n not in self.world.sent.get(PROCS[rank], ()):
            self.world.happens(EndedWell(n, rank, 1.0))

    @rule(rank=st.sampled_from(list(PROCS)))
    def die(self, rank: int) -> None:
        if PROCS[rank] not in self.world.ranks.ends:
            self.world.die(rank)

    @rule(rank=st.sampled_from(list(PROCS)))
    def start_again(self, rank: int) -> None:
        self.world.ranks.ends.pop(PROCS[rank], None)

    @rule(n=numbers, reason=st.sampled_from([EndReason.USER, EndReason.FAILURE, "timeout 1"]))
    def want_end(self, n: int, reason: str) -> None:
        self.world.happens(EndWanted(n, reason))

    @rule(rank=st.sampled_from(list(PROCS)))
    def look_at(self, rank: int) -> None:
        self.world.ranks.attended ^= {PROCS[rank]}

    @rule(seconds=st.sampled_from([0.1, GRACE_S, INTERRUPT_S, ABORT_S]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(data=st.data())
    def something_comes(self, data: st.DataObject) -> None:
        if self.world.answers:
            which = data.draw(st.integers(0, len(self.world.answers) - 1))
            self.world.happens(self.world.answers.pop(which))

    @rule(rank=st.sampled_from(list(PROCS)))
    def say(self, rank: int) -> None:
        self.world.happens(CellNotice(PROCS[rank], "does not react"))

    @invariant()
    def each_rank_runs_one_cell_at_most(self) -> None:
        for proc in PROCS.values():
            running = [n for n in self.world.sent.get(proc, ()) if n not in self.world.over]
            assert len(running) <= 1
            assert (self.world.states.at(proc) or (0,))[0] in (*running, 0)

    @invariant()
    def each_cell_runs_or_is_over(self) -> None:
        known = {n for n in self.submitted if self.world.states.knows(n)}
        assert known == self.submitted - set(self.world.over)

    @invariant()
    def each_result_is_written_once(self) -> None:
        written = Counter((w.n, w.rank) for w in self.world.of(do.Write))
        assert max(written.values(), default=1) == 1
        sent = Counter(
            (t.n, t.message.rank) for t in self.world.of(do.Tell) if isinstance(t.message, RankDone)
        )
        assert max(sent.values(), default=1) == 1

    def teardown(self) -> None:
        """All that must come comes, users are impatient, time goes by."""
        world = self.world
        world.ranks.attended.clear()
        for n in self.submitted:
            world.happens(EndWanted(n, EndReason.USER))
        for _ in range(4):
            world.answer_all()
            world.pass_time(INTERRUPT_S + ABORT_S + GRACE_S)
        world.answer_all()
        assert set(world.over) == self.submitted, "a cell has never ended"
        for proc in PROCS.values():
            for n in list(world.sent.get(proc, ())):
                world.answer(proc - 100, n=n)
        states = world.states
        assert (states._cells, states._queues, states._stuck) == ({}, {}, {}), "something is left"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_what_is_said_on_a_rank_goes_to_the_cell_that_runs_there(world: World) -> None:
    world.submit(1)
    world.submit(2)
    assert world.happens(CellNotice(PROCS[0], "hm")) == [do.Tell(1, CellMessage("hm"))]
    assert world.happens(CellNotice(999, "hm")) == []
