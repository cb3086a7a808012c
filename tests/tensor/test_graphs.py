"""Recorded commands that a rank does as one function: tables are those of single commands, also after a
failure; and a step on real ranks sums many gradients in few messages.
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

import monarch_nb
from monarch_nb._rank.tensor import graphs, sums
from monarch_nb._rank.tensor.executor import Executor, executors
from monarch_nb._rank.tensor.meshes import OwnMesh
from monarch_nb._rank.tensor.protocol import (
    DROP,
    SINGLE,
    Batch,
    Definition,
    GoOn,
    Hole,
    Poison,
    RecordedPart,
    Report,
)  # fmt: skip
from monarch_nb.distributed import Mesh

aten = torch.ops.aten
NUM_GIVEN = 4
OWN = range(10, 24)
REPLAYS = 5
PLACEMENTS = {"sharded": Shard(0), "whole": Replicate()}
SUM = 90
DOUBLE = "aten.mul_.Scalar"
"""Changes its argument, and returns nothing new."""


def definition(number: int, op: str, args: tuple[Any, ...], num: int, kind: str, **more: Any) -> Definition:
    return Definition(
        number, op, args, (), num, 0, (SINGLE,), grid=0, placements=((PLACEMENTS[kind],),), **more
    )


def plans_of(kind: str, first: int) -> dict[str, Definition]:
    """Return operations on tensors of one layout."""
    operations: dict[str, tuple[tuple[Any, ...], int]] = {
        "aten.add.Tensor": ((Hole(0), Hole(1)), 2),
        "aten.neg.default": ((Hole(0),), 1),
        "aten.mul.Scalar": ((Hole(0), 3), 1),
        "aten.transpose.int": ((Hole(0), 0, 1), 1),
        "aten.view.default": ((Hole(0), [2, 2]), 1),
        "aten.sin.default": ((Hole(0),), 1),
    }
    if kind == "sharded":
        del operations["aten.transpose.int"]  # it would be split along the other dimension then
    found = {
        op: definition(first + n, op, args, num, kind)
        for n, (op, (args, num)) in enumerate(operations.items())
    }
    found[DOUBLE] = Definition(first + len(found), DOUBLE, (Hole(0), 2), (), 1, 0, (), (0,), grid=0)
    return found


PLANS = {kind: plans_of(kind, 1 + 20 * n) for n, kind in enumerate(PLACEMENTS)}
SUMMED = definition(SUM, "own.redistribute", (Hole(0), (Replicate(),)), 1, "whole")
ALL = (*(plan for plans in PLANS.values() for plan in plans.values()), SUMMED)


class Raises(TorchDispatchMode):
    """A mode in which one operation raises."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.sin.default:
            raise ArithmeticError("no sine today")
        return func(*args, **(kwargs or {}))


class Alone:
    """The executor of a rank that is alone on its device mesh; what's summed over ranks is doubled."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.executor = Executor("alone", 0, self._reported)
        self.executor._has_begun = True
        self.mesh = OwnMesh(
            "cpu", torch.zeros(1, dtype=torch.int), mesh_dim_names=("x",), _init_backend=False, _rank=0
        )
        self.executor._meshes.by_number[0] = self.mesh
        self.executor._own["own.redistribute"] = self._doubled
        self.executor._table = [None] * (OWN.stop + NUM_GIVEN)
        self._next = 0

    def _reported(self, report: Report) -> None:
        self.reports.append(report)
        self.executor.decisions.put(GoOn(report.seq))

    def _doubled(self, value: Any, placements: Any) -> DTensor:
        return self.tensor(value.to_local() * 2, placements[0])

    def tensor(self, local: torch.Tensor, placement: Any) -> DTensor:
        return DTensor.from_local(local, self.mesh, [placement], run_check=False)

    def give(self, kinds: Sequence[str]) -> None:
        """Put arguments into the table, at its end."""
        for n, kind in enumerate(kinds):
            local = torch.arange(4.0).view(2, 2) + 10 * n
            placement = Partial() if kind == "partial" else PLACEMENTS[kind]
            self.executor._table[OWN.stop + n] = self.tensor(local, placement)

    def replay(self, part: RecordedPart, **more: Any) -> None:
        words = array.array("I", [part.number, *range(OWN.stop, OWN.stop + NUM_GIVEN)])
        size = len(self.executor._table)
        self.executor.run(Batch(self._next, size, words.tobytes(), replays=((0, 0),), **more))
        self._next += 1000

    def num_graphs(self) -> int:
        return sum(len(part.graphs or ()) for part in self.executor._replays._known.values())

    def table(self) -> list[Any]:
        """Return what slots have; also which are one tensor, and which share memory."""
        found: list[Any] = []
        tensors = [x for x in self.executor._table if isinstance(x, DTensor)]
        memories = [x.to_local().untyped_storage().data_ptr() for x in tensors]
        for value in self.executor._table:
            if isinstance(value, DTensor):
                memory = memories.index(value.to_local().untyped_storage().data_ptr())
                same = next(n for n, x in enumerate(tensors) if x is value)
                local = value.to_local()
                found.append((value.placements, local.tolist(), local.stride(), same, memory))
            else:
                found.append(value)
        return found


class Program:
    """Random commands on slots, as a recorded part."""

    def __init__(self, seed: int, kinds: Sequence[str], sine_at: int | None = None) -> None:
        draw = random.Random(seed)
        self.kinds = kinds
        self._words: list[int] = []
        self._positions: list[int] = []
        self._which: list[int] = []
        has: dict[int, str] = dict(enumerate(kinds))  # given ones by number, own ones by slot
        for n in range(30):
            if n == sine_at:
                self._operation(draw, has, "aten.sin.default")
            elif draw.random() < 0.1 and (drops := [slot for slot in has if slot in OWN]):
                slot = draw.choice(drops)
                self._words += (DROP, 1, slot)
                del has[slot]
            elif draw.random() < 0.3 and "partial" in kinds:
                self._call(
                    SUMMED,
                    [draw.choice([k for k, v in has.items() if v == "partial"])],
                    out := draw.choice(OWN),
                )
                has[out] = "whole"
            else:
                self._operation(draw, has)

    def _operation(self, draw: random.Random, has: dict[int, str], op: str = "") -> None:
        kind = draw.choice([v for v in has.values() if v != "partial"])
        op = op or draw.choice([name for name in PLANS[kind] if "sin" not in name])
        plan = PLANS[kind][op]
        inputs = [draw.choice([k for k, v in has.items() if v == kind]) for _ in range(plan.num_inputs)]
        out = draw.choice([slot for slot in OWN if slot not in inputs])
        if op == DOUBLE:
            self._call(plan, inputs)
        else:
            self._call(plan, inputs, out)
            has[out] = kind

    def _call(self, plan: Definition, inputs: Sequence[int], *outputs: int) -> None:
        self._words.append(plan.plan)
        for slot in (*inputs, *outputs):
            if slot < NUM_GIVEN:
                self._positions.append(len(self._words))
                self._which.append(slot)
            self._words.append(slot)

    def part(self) -> RecordedPart:
        def data(words: Sequence[int]) -> bytes:
            return array.array("I", words).tobytes()

        return RecordedPart(7, data(self._words), NUM_GIVEN, data(self._positions), data(self._which))


@pytest.fixture(autouse=True)
def doubled_sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "mesh" not in request.fixturenames:
        monkeypatch.setattr(graphs, "summed", lambda parts, *_: [part * 2 for part in parts])


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Alone]:
    """Executors whose commands are done one by one."""

    def make() -> Alone:
        made = Alone()
        monkeypatch.setattr(made.executor, "_graphs", lambda message: {})
        return made

    return make


def run(alone: Alone, program: Program, replays: int = REPLAYS) -> Alone:
    part = program.part()
    for n in range(replays):
        alone.give(program.kinds)
        alone.replay(part, **({} if n else {"definitions": ALL, "recorded": (part,)}))
    return alone


def replay_without_sines(program: Program, *executors: Alone) -> None:
    """Replay a program once more, whose sine fails."""
    for each in executors:
        each.give(program.kinds)
        with Raises():
            each.replay(program.part())


SHARDED = ["sharded"] * 2 + ["whole"] * 2
WITH_SUMS = ["sharded", "whole", "partial", "partial"]


@pytest.mark.parametrize("kinds", [SHARDED, WITH_SUMS], ids=["local", "sums"])
def test_tables_are_those_of_single_commands(single: Callable[[], Alone], kinds: list[str]) -> None:
    for seed in range(40):
        program = Program(seed, kinds)
        one, graph = run(single(), program), run(Alone(), program)
        assert graph.num_graphs() and not one.num_graphs(), seed
        assert graph.table() == one.table(), seed
        assert not graph.reports and not one.reports, graph.reports or one.reports


def test_a_failure_leaves_what_single_commands_would_have_left(single: Callable[[], Alone]) -> None:
    for seed in range(40):
        program = Program(seed, SHARDED, sine_at=5 + seed % 20)
        one, graph = run(single(), program), run(Alone(), program)
        replay_without_sines(program, one, graph)
        assert [(x.seq, x.op, x.kind) for x in graph.reports] == [(x.seq, x.op, x.kind) for x in one.reports]
        assert len(graph.reports) == 1 and graph.reports[0].op == "aten.sin.default"
        assert graph.table() == one.table(), seed


def test_a_failure_while_sums_wait_goes_back_to_the_first_of_them(single: Callable[[], Alone]) -> None:
    went_back = 0
    for seed in range(40):
        program = Program(seed, WITH_SUMS, sine_at=5 + seed % 20)
        one, graph = run(single(), program), run(Alone(), program)
        replay_without_sines(program, one, graph)
        (wanted,), reports = one.reports, graph.reports
        assert {x.op for x in reports} == {"aten.sin.default"} and {x.kind for x in reports} == {wanted.kind}
        assert reports[-1].seq == wanted.seq
        went_back += len(reports) == 2
        if len(reports) == 2:
            assert reports[0].seq < wanted.seq
        for found, expected in zip(graph.executor._table, one.executor._table, strict=True):
            is_lost = isinstance(found, Poison)
            assert is_lost or isinstance(expected, DTensor) == isinstance(found, DTensor), seed
            if isinstance(found, DTensor) and isinstance(expected, DTensor):
                assert torch.equal(found.to_local(), expected.to_local()), seed
        run(graph, program), run(one, program)  # all of it is good again
        assert graph.table() == one.table(), seed
    assert went_back > 5


def test_values_that_were_lost_lose_what_depends_on_them(single: Callable[[], Alone]) -> None:
    for seed in range(40):
        program = Program(seed, WITH_SUMS if seed % 2 else SHARDED)
        one, graph = run(single(), program), run(Alone(), program)
        for each in (one, graph):
            each.give(program.kinds)
            each.executor._table[OWN.stop + seed % NUM_GIVEN] = Poison(5)
            each.replay(program.part())
            assert not each.reports
        lost = [[isinstance(x, Poison) for x in each.executor._table] for each in (one, graph)]
        assert lost[0] == lost[1], seed
        found = [[None if isinstance(x, Poison) else x for x in each.table()] for each in (one, graph)]
        assert found[0] == found[1], seed


def test_a_sum_of_several_tensors_is_that_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def all_reduce(tensor: torch.Tensor, group: Any, async_op: bool = False) -> None:
        sizes.append(tensor.numel())
        tensor *= 2**group

    class Axes:
        get_group = staticmethod(lambda axis: axis)

    monkeypatch.setattr(sums.dist, "all_reduce", all_reduce)
    big = sums.SMALL_BYTES // 4 + 1
    shapes = [(2, 3), (big,), (), (0,), (5,), (big, 1)]
    parts = [torch.rand(shape) for shape in shapes] + [torch.ones(3, dtype=torch.int), torch.rand(4).t()]
    along = [(1,)] * 4 + [(1, 2)] + [(1,)] * 3
    found = sums.summed(parts, along, Axes)
    for part, axes, each in zip(parts, along, found, strict=True):
        assert torch.equal(each, part * 2 ** sum(axes)) and each.shape == part.shape
    assert sizes == [6 + 1 + 0 + 4, big, 5, 5, big, 3]


# --- on real ranks


def num_sums() -> list[int]:
    """On a rank: of each recorded part that has functions, how many messages of sums these send."""
    found = []
    for executor in executors.values():
        for part in executor._replays._known.values():
            for graph in (part.graphs or {}).values():
                found.append(sum(name == "summed" for name in graph.__code__.co_names))  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_training_is_that_of_one_process(mesh: Mesh, optimizer: str) -> None:
    torch.manual_seed(0)
    make = lambda: torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(6))).double()  # noqa: E731
    plain = make()
    model = monarch_nb.module_to_mesh(plain, mesh)
    batches = [torch.randn(8, 6, dtype=torch.float64) for _ in range(10)]
    losses = []
    for each in (plain, model):
        made = getattr(torch.optim, optimizer)(each.parameters(), lr=1e-2)

        def step(batch: Any, each: Any = each, made: Any = made) -> Any:
            made.zero_grad()
            loss = each(batch).square().mean()
            loss.backward()
            made.step()
            return loss.detach()

        do = step if each is plain else monarch_nb.compile(step)
        losses.append([float(do(batch)) for batch in batches])
    assert losses[1] == pytest.approx(losses[0], abs=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one.full(), other, atol=1e-12)
    assert mesh.execute(num_sums)
