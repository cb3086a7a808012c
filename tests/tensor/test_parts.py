"""Parts of the engine without ranks: words, plans, slots, layouts by name, private names of torch."""

from __future__ import annotations

import array
import struct
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from monarch_nb._rank.tensor import private
from monarch_nb._rank.tensor.compiler import compile_plan
from monarch_nb._rank.tensor.executor import KEPT_MESSAGES, Executor
from monarch_nb._rank.tensor.protocol import (
    DROP,
    SINGLE,
    Batch,
    Definition,
    Described,
    GoOn,
    Hole,
    Poison,
    Report,
    Resume,
    ScalarHole,
)  # fmt: skip
from monarch_nb._rank.tensor.recovery import Stale
from monarch_nb._tensor.metadata import Grid, contiguous, intern, layout_text, placements_of
from monarch_nb._tensor.place import Places
from monarch_nb._tensor.plan import TemplateMaker, floats_travel, written_names
from monarch_nb._tensor.recovery import donors
from monarch_nb._tensor.slots import Handle, Slots
from monarch_nb.exceptions import MeshUsageError

aten = torch.ops.aten


@pytest.fixture
def grid() -> Grid:
    return Grid(object(), (4, 2), ("dp", "tp"), range(8), "cpu")


def test_layouts_by_name(grid: Grid) -> None:
    assert placements_of(["dp", "tp"], (8, 8), grid) == (Shard(0), Shard(1))
    assert placements_of([None, ("dp", "tp")], (8, 8), grid) == (Shard(1), Shard(1))
    assert placements_of([], (8, 8), grid) == (Replicate(), Replicate())
    assert layout_text(grid, (Shard(1), Partial())) == "dim 1 over dp, partial sum over tp"
    assert layout_text(grid, (Replicate(), Replicate())) == "whole on every rank"
    with pytest.raises(MeshUsageError, match=r"no axis 'x': its axes are 'dp' \(4\), 'tp' \(2\)"):
        placements_of(["x"], (8,), grid)


def test_one_description_of_a_kind(grid: Grid) -> None:
    one = intern((2, 3), contiguous((2, 3)), torch.float32, grid, grid.replicated)
    assert intern(torch.Size([2, 3]), [3, 1], torch.float32, grid, grid.replicated) is one
    assert intern((2, 3), (1, 2), torch.float32, grid, grid.replicated) is not one
    assert one.num_bytes == 24 and repr(one) == "float32[2, 3] whole on every rank"


def test_slots_come_back() -> None:
    slots = Slots()
    handles = [Handle(slots, 0) for _ in range(5)]
    del handles[1:3]
    assert slots.num_live == 3 and sorted(slots.collect()) == [1, 2]
    assert {Handle(slots, 0).slot, slots.acquire()} <= {1, 2} and slots.top == 5


def test_which_floats_travel() -> None:
    assert floats_travel(aten.addcdiv_.default) and floats_travel(aten._foreach_mul_.Scalar)
    assert not floats_travel(aten.sum.default) and not floats_travel(aten.full.default)
    maker = TemplateMaker(lambda x: x == "tensor", travels=True)
    assert maker.of(["tensor", 2.0, 3, ["tensor"]], {"alpha": 0.5}) == (
        (Hole(0), ScalarHole(0), 3, [Hole(1)]), (("alpha", ScalarHole(1)),),
    )  # fmt: skip


def test_what_is_written() -> None:
    assert written_names(aten.add_.Tensor) == {"self"} and written_names(aten.add.Tensor) == set()
    assert written_names(aten.native_batch_norm.default) == {"running_mean", "running_var"}, (
        "its schema doesn't say so"
    )


def test_a_plan_becomes_a_function() -> None:
    plan = Definition(1, "aten.add.Tensor", (Hole(0), Hole(1)), (("alpha", ScalarHole(0)),), 2, 1, (SINGLE,))
    words = array.array("I", [1, 0, 1])
    words.frombytes(struct.pack("<d", 0.5))
    words.append(2)
    table: list[Any] = [torch.ones(2), torch.ones(2), None]
    command = compile_plan(plan, aten.add.Tensor, lambda b, i: struct.unpack_from("<d", b, 4 * i)[0])
    assert command(table, words, 0) == plan.num_words == len(words)
    assert table[2].tolist() == [1.5, 1.5]


class Alone:
    """An executor of values of its own rank, and a controller that always says the same."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.executor = Executor("alone", 0, self._reported)
        self.executor._has_begun = True
        self.decision: Any = None

    def _reported(self, report: Report) -> None:
        self.reports.append(report)
        self.executor.decisions.put(self.decision or GoOn(report.seq))

    def run(self, first: int, words: list[int], *plans: Definition, parcels: tuple[Any, ...] = ()) -> None:
        self.executor.run(Batch(first, 8, array.array("I", words).tobytes(), (), plans, parcels))


PUT = Definition(1, "own.put", (None, None, (0,), False), (), 0, 0, (SINGLE,))
MM = Definition(2, "aten.mm.default", (Hole(0), Hole(1)), (), 2, 0, (SINGLE,))


def test_poison_spreads_and_nothing_else_is_hurt() -> None:
    alone = Alone()
    alone.run(0, [1, 0, 1, 1], PUT, MM, parcels=(torch.ones(2, 3), torch.ones(3, 2)))
    alone.run(2, [2, 0, 0, 2, 2, 2, 1, 3, 2, 0, 1, 4, DROP, 1, 0])
    fetched = [alone.executor.fetch(slot, "first") for slot in (2, 3, 4)]
    assert [f.failed for f in fetched] == [2, 2, -1], (
        "the second product is of the first, which failed; the third isn't"
    )
    assert fetched[2].value.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert [(r.seq, r.op, r.kind) for r in alone.reports] == [(2, "aten.mm.default", "RuntimeError")]
    assert alone.executor.fetch(4, "describe").value == Described((2, 2), (2, 1), torch.float32)


def test_ranks_that_stand_at_different_commands_lose_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone()
    monkeypatch.setattr(alone.executor._meshes, "connect", lambda *_: None)
    alone.run(0, [1, 0, 1, 1], PUT, MM, parcels=(torch.ones(2, 3), torch.ones(3, 2)))
    alone.decision = Resume(cause=3, first=3, until=6, epoch=1, address=("", 0))
    alone.run(2, [2, 0, 1, 2, 2, 0, 1, 3])
    alone.run(4, [2, 0, 0, 4, 1, 5, 1, 6, 2, 0, 1, 7], parcels=(torch.zeros(2, 3), torch.full((1, 1), 7.0)))
    table = alone.executor._table
    assert [isinstance(table[slot], Poison) for slot in range(8)] == [
        False,
        False,
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    assert table[6].tolist() == [[7.0]], "parcels of commands that are left out are left out, too"


def test_plans_are_forgotten_when_no_kept_message_needs_them() -> None:
    alone = Alone()
    alone.run(0, [1, 0], PUT, parcels=(torch.ones(2, 2),))
    words = array.array("I", [1, 1]).tobytes()
    alone.executor.run(Batch(1, 8, words, (), (MM,), (torch.ones(1),), forgotten=(1,)))
    assert set(alone.executor._plans) == {1, 2}, "kept messages have commands of that plan"
    for n in range(KEPT_MESSAGES):
        alone.run(2 + n, [2, 0, 0, 2])
    assert set(alone.executor._plans) == {2}
    assert all(next(each.parcels(), None) is None for each in alone.executor._messages), "values aren't kept"


def test_what_is_left_out_and_what_it_would_have_changed() -> None:
    base, other = torch.zeros(4), torch.zeros(4)
    part = Definition(3, "aten.slice.Tensor", (Hole(0), 0, 0, 2), (), 1, 0, (SINGLE,))
    add = Definition(4, "aten.add_.Tensor", (Hole(0), Hole(1)), (), 2, 0, (), (0,))
    found = Stale([base, base[2:], other, None], lambda plan: plan is part)
    found.leave_out(part, [0], [3])  # a view of the base, which isn't made any more
    assert found.slots == frozenset()
    found.leave_out(add, [3, 2], [])
    assert found.slots == {0, 1}
    found.leave_out(MM, [2, 2], [3])
    found.leave_out(add, [3, 2], [])
    assert found.slots == {0, 1}, "a product lies in memory of its own"


def test_who_has_the_same_part(grid: Grid) -> None:
    whole = grid.replicated
    assert donors(grid, whole, [3]) == {3: {0, 1, 2, 4, 5, 6, 7}}
    assert donors(grid, (Shard(0), Replicate()), [3]) == {3: {2}}
    assert donors(grid, (Replicate(), Shard(0)), [3, 5]) == {3: {1, 7}, 5: {1, 7}}
    assert donors(grid, (Shard(0), Replicate()), [2, 3]) is None
    assert donors(grid, (Shard(0), Shard(1)), [3]) is None
    assert donors(grid, (Replicate(), Partial()), [3]) is None
    assert donors(grid, None, [3]) is None and donors(grid, None, [9]) == {}


def test_places_of_commands() -> None:
    places = Places()
    for at in range(5):
        places.add((None, at, "", ""))
    found = places.of(3, 5)
    assert found is not None and found.at == 3
    assert places.of(9, 5) is None and places.of(5, 5) is None


@pytest.mark.parametrize("name", [name for name in vars(private) if not name.startswith("_")])
def test_private_names_of_torch_are_where_they_were(name: str) -> None:
    assert getattr(private, name) is not None


def test_a_result_that_is_under_way_lies_where_it_will_be() -> None:
    memory = torch.ones(4)
    found = Stale([private.AsyncCollectiveTensor(memory), memory], lambda _: False)
    found.leave_out(Definition(4, "aten.add_.Tensor", (Hole(0), 1), (), 1, 0, (), (0,)), [1], [])
    assert found.slots == {0, 1}
