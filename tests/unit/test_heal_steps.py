"""A heal's steps, with no process: the registry is real, what is done to it is decided by each test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb._host.controller.heal_steps import (
    AwaitTaken,
    Effect,
    FindBusy,
    MakeActors,
    RemakeGroup,
    ReplaceHost,
    RestartRanks,
    RunDefinitions,
    Settle,
    StartRanks,
    TellHealed,
    common_version,
    heal_steps,
)
from monarch_nb._host.controller.registry import Group, Registry
from monarch_nb._host.controller.workflow import carry_out, run_workflow
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.healing import Heal, Report
from monarch_nb._protocol.states import HostState, ProcState
from monarch_nb._shape import Extent
from monarch_nb._wire import address

NUM_HOSTS, PER_HOST = 3, 2


@dataclass
class World:
    """A mesh of three hosts with two ranks each, and what becomes of what a heal asks for."""

    no_start: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    hosts_late: set[int] = field(default_factory=set)
    no_replacement: set[int] = field(default_factory=set)
    stuck: set[int] = field(default_factory=set)
    busy: list[int] = field(default_factory=list)
    actors: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = Registry()
        self.done: list[Effect] = []
        procs = []
        for index in range(NUM_HOSTS):
            self.registry.new_host(f"host{index}").state = HostState.UP
            ranks = [index * PER_HOST + i for i in range(PER_HOST)]
            procs += self.registry.new_procs(index, "workers", ranks)
        for proc in procs:
            proc.state = ProcState.RUNNING
        self.procs = [p.proc for p in procs]
        extent = Extent(("hosts", "gpus"), (NUM_HOSTS, PER_HOST))
        self.registry.groups["workers"] = Group("workers", extent, self.procs, {}, "fork")

    def rank(self, rank: int) -> Any:
        return self.registry.procs[self.procs[rank]]

    def lose(self, rank: int) -> None:
        entry = self.rank(rank)
        entry.state, entry.end = ProcState.LOST, _end(entry.proc, rank)

    def lose_host(self, index: int) -> None:
        self.registry.hosts[index].state = HostState.LOST
        for rank in range(index * PER_HOST, (index + 1) * PER_HOST):
            self.lose(rank)

    def heal(self, *asked: int) -> Report:
        """Run a heal to its end; `asked`: ranks, or none for all that is dead."""
        request = Heal("workers", [self.procs[r] for r in asked] or None)
        answer: Any = None
        steps = heal_steps(self.registry, request, lambda proc: self.registry.procs[proc].rank in self.stuck)
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as end:
                return end.value
            self.done.append(effect)
            answer = self._do(effect)

    def _do(self, effect: Effect) -> Any:
        match effect:
            case RestartRanks(procs) | StartRanks(procs):
                for proc in procs:
                    self._start(self.registry.procs[proc])
            case ReplaceHost(index):
                return self._replace(index)
            case FindBusy(ranks):
                return [r for r in self.busy if r in ranks]
            case MakeActors(_, report):
                report.actor_ids += self.actors
            case RemakeGroup():
                return "the process group has been made anew"
            case AwaitTaken() | Settle() | RunDefinitions() | TellHealed():
                pass
            case _:
                assert_never(effect)
        return None

    def _start(self, entry: Any) -> None:
        assert self.registry.hosts[address.host_of(entry.proc)].state == HostState.UP, "its host is down"
        entry.end = _end(entry.proc, entry.rank) if entry.rank in self.no_start else None
        entry.state = ProcState.LOST if entry.end else ProcState.STARTING
        if not entry.end and entry.rank not in self.late:
            entry.state = ProcState.RUNNING

    def _replace(self, index: int) -> str:
        if index in self.no_replacement:
            return f"host{index} can't be replaced"
        late = index in self.hosts_late
        self.registry.hosts[index].state = HostState.EXPECTED if late else HostState.UP
        return ""


def _end(proc: int, rank: int) -> RankExit:
    return RankExit(proc, "workers", rank, "host", 100 + rank)


def _of(world: World, kind: type) -> list[Any]:
    return [e for e in world.done if isinstance(e, kind)]


def test_a_lost_rank_is_started_and_everybody_is_told() -> None:
    world = World(actors=[7])
    world.lose(1)
    report = world.heal()
    assert report.ranks == [1]
    assert report.problems == []
    assert [type(e) for e in world.done] == [
        AwaitTaken, StartRanks, Settle, RemakeGroup, RunDefinitions, MakeActors, TellHealed,
    ]  # fmt: skip
    assert world.done[-1] == TellHealed("workers", (7,))
    assert not _of(world, RemakeGroup)[0].if_torn


def test_a_heal_of_nothing_starts_nothing_and_makes_a_torn_group_anew() -> None:
    world = World()
    assert world.heal().ranks == []
    assert not _of(world, StartRanks)
    assert not _of(world, Settle)
    assert _of(world, RemakeGroup)[0].if_torn


def test_a_lost_host_is_replaced_before_its_ranks_are_started() -> None:
    world = World()
    world.lose_host(1)
    report = world.heal()
    assert (report.hosts, report.ranks) == (["host1"], [2, 3])
    kinds = [type(e) for e in world.done]
    assert kinds.index(ReplaceHost) < kinds.index(StartRanks)


def test_ranks_of_a_host_that_stays_away_are_not_started() -> None:
    world = World(hosts_late={1}, no_replacement={2})
    world.lose_host(1)
    world.lose_host(2)
    world.lose(0)
    report = world.heal()
    assert report.ranks == [0]
    assert report.problems == ["host2 can't be replaced", "host host1 did not come back within 60 s"]


def test_ranks_that_hang_are_started_anew_only_for_somebody_who_asks() -> None:
    world = World(stuck={4})
    assert world.heal().ranks == []
    assert world.heal(*range(6)).ranks == [4]
    assert _of(world, RestartRanks) == [RestartRanks((world.procs[4],))]


def test_who_asks_is_told_which_ranks_still_run_a_function() -> None:
    world = World(busy=[0, 2])
    world.lose(1)
    assert any("ranks 0,2 still run functions" in m for m in world.heal(*range(6)).messages)
    assert not _of(world, FindBusy)[0].ranks.keys() & {1}, "one that is new runs nothing"
    world.lose(1)
    assert not any("still run" in m for m in world.heal().messages), "nobody has asked"


ranks = st.sets(st.integers(0, NUM_HOSTS * PER_HOST - 1))
hosts = st.sets(st.integers(1, NUM_HOSTS - 1))


@settings(max_examples=200, deadline=None)
@given(ranks, hosts, ranks, ranks, hosts, hosts, ranks)
def test_each_rank_that_was_lost_is_up_or_named(
    lost: set[int], lost_hosts: set[int], no_start: set[int], late: set[int], hosts_late: set[int],
    no_replacement: set[int], stuck: set[int],
) -> None:  # fmt: skip
    world = World(no_start, late, hosts_late, no_replacement, stuck)
    for host in lost_hosts:
        world.lose_host(host)
    for rank in lost:
        world.lose(rank)
    gone = {p.rank for p in world.registry.procs.values() if p.end is not None}
    report = world.heal()
    output = " ".join(report.problems)
    for rank in gone:
        host = rank // PER_HOST
        assert rank in report.ranks or f"rank {rank} did not" in output or f"host{host} " in output
    assert set(report.ranks) <= gone, "one that lives was touched"
    assert [type(e) for e in world.done].count(TellHealed) == 1
    assert isinstance(world.done[-1], TellHealed)
    started = [p for e in _of(world, StartRanks) for p in e.procs]
    assert len(started) == len(set(started)), "one was started twice"


@pytest.mark.parametrize(
    ("kept", "num", "on_disk", "found"),
    [
        ([{1, 2}, {2, 3}], 2, None, 2),
        ([{1, 2}, {2, 3}], 2, 3, None),
        ([{1, 2}, {2, 3}], 2, 2, 2),
        ([{1, 2}], 2, None, None),
        ([{1}, {2}], 2, None, None),
        ([], 0, None, None),
    ],
)
def test_survivors_go_on_from_what_all_of_them_have(
    kept: list[set[int]], num: int, on_disk: int | None, found: int | None
) -> None:
    assert common_version(kept, num, on_disk) == found


def test_what_goes_wrong_in_a_step_ends_the_heal_with_that_error() -> None:
    def perform(effect: Effect) -> Any:
        raise OSError("no room")
        yield

    outcomes: list[object] = []
    world = World()
    run_workflow(
        carry_out(heal_steps(world.registry, Heal("workers"), lambda _: False), perform), outcomes.append
    )
    assert [str(o) for o in outcomes] == ["no room"]
