"""Commands that work on a rank's parts directly: which do, and that nothing else changes by it."""

from __future__ import annotations

import array
import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import monarch_nb
from monarch_nb._rank.tensor import executor as executor_module
from monarch_nb._rank.tensor.executor import Executor, executors
from monarch_nb._rank.tensor.meshes import OwnMesh
from monarch_nb._rank.tensor.protocol import SINGLE, Batch, Definition, GoOn, Hole, Poison, Recovery, Report
from monarch_nb.distributed import Mesh

SHARDED = ((Shard(0),),)
ADD = Definition(
    1, "aten.add.Tensor", (Hole(0), Hole(1)), (), 2, 0, (SINGLE,), grid=0, placements=SHARDED
)  # fmt: skip
PLANNED_ADD = replace(ADD, sums=(), metas=(((2,), (1,), torch.float32),))
MULTIPLY = Definition(
    2, "aten.mul_.Tensor", (Hole(0), Hole(1)), (), 2, 0, (), (0,), grid=0
)  # fmt: skip


class Alone:
    """The executor of a rank that is alone on its device mesh."""

    def __init__(self, *values: Any) -> None:
        self.reports: list[Report] = []
        self.executor = Executor("alone", 0, self._reported)
        self.executor._has_begun = True
        mesh = OwnMesh(
            "cpu", torch.zeros(1, dtype=torch.int), mesh_dim_names=("x",), _init_backend=False, _rank=0
        )
        self.executor._meshes.by_number[0] = self.mesh = mesh
        self.executor._table = list(values)
        self._next = 0

    def _reported(self, report: Report) -> None:
        self.reports.append(report)
        self.executor.decisions.put(GoOn(report.seq))

    def sharded(self, *values: float) -> DTensor:
        return DTensor.from_local(torch.tensor(values), self.mesh, [Shard(0)], run_check=False)

    def run(self, *words: int, plans: tuple[Definition, ...] = ()) -> Any:
        """Execute a command; return its result."""
        self.executor.run(Batch(self._next, 8, array.array("I", words).tobytes(), (), plans))
        self._next += 1
        return self.executor._table[words[-1]]

    def is_short(self, plan: Definition) -> bool:
        code = getattr(self.executor._commands[plan.plan], "__code__", None)
        return code is not None and "part" in code.co_names


@pytest.mark.parametrize("planned", [ADD, PLANNED_ADD], ids=["by rules", "as planned"])
def test_commands_work_on_parts(planned: Definition) -> None:
    alone = Alone()
    alone.executor._table = [alone.sharded(1.0, 2.0), alone.sharded(3.0, 4.0), None]
    found = [alone.run(1, 0, 1, 2, plans=(planned,) if n == 0 else ()) for n in range(4)]
    assert all(each.shape == (2,) and each.stride() == (1,) for each in found)
    assert alone.is_short(ADD)
    assert all(type(each) is DTensor and each.placements == (Shard(0),) for each in found)
    assert [each.to_local().tolist() for each in found] == [[4.0, 6.0]] * 4
    assert found[3] is not found[2] and not found[3].requires_grad


def test_what_is_changed_in_place_stays_the_tensor_that_it_is() -> None:
    alone = Alone()
    value = alone.sharded(1.0, 2.0)
    alone.executor._table = [value, alone.sharded(2.0, 3.0), None]
    for n in range(4):
        alone.run(2, 0, 1, plans=(MULTIPLY,) if n == 0 else ())
        assert alone.executor._table[0] is value
    assert alone.is_short(MULTIPLY) and value.to_local().tolist() == [16.0, 162.0]


def test_a_value_that_was_lost_loses_the_results_only() -> None:
    alone = Alone()
    alone.executor._table = [alone.sharded(1.0), alone.sharded(3.0), None, Poison(7)]
    alone.run(1, 0, 1, 2, plans=(ADD,))
    for _ in range(4):  # at the use at which it would be made short, and afterwards
        assert isinstance(alone.run(1, 0, 3, 4), Poison)
        alone.run(1, 0, 1, 2)
    assert alone.is_short(ADD) and not alone.reports
    assert alone.run(1, 0, 1, 2).to_local().tolist() == [4.0]


def test_inputs_that_must_be_laid_out_anew_go_through_dtensor() -> None:
    alone = Alone()
    partial = DTensor.from_local(torch.ones(1), alone.mesh, [Partial()], run_check=False)
    alone.executor._table = [partial, alone.sharded(3.0), None]
    for n in range(3):
        try:
            alone.run(1, 0, 1, 2, plans=(ADD,) if n == 0 else ())
        finally:
            assert not alone.is_short(ADD)


def test_a_result_that_isnt_laid_out_as_planned_ends_all_short_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Alone()
    alone.executor._table = [alone.sharded(1.0), alone.sharded(3.0), None]
    for n in range(3):
        alone.run(1, 0, 1, 2, plans=(ADD,) if n == 0 else ())
    assert alone.is_short(ADD)
    other = Definition(
        3, "aten.sub.Tensor", (Hole(0), Hole(1)), (), 2, 0, (SINGLE,), grid=0, placements=((Replicate(),),)
    )
    for n in range(3):
        assert alone.run(3, 0, 1, 2, plans=(other,) if n == 0 else ()).to_local().tolist() == [-2.0]
        assert alone.run(1, 0, 1, 2).to_local().tolist() == [4.0]
        assert not alone.is_short(ADD) and not alone.is_short(other)
    # a heal: a rank that was started anew works on parts, and all must do the same collectives
    forgotten: list[None] = []
    monkeypatch.setattr(executor_module, "forget_layouts", lambda: forgotten.append(None))
    alone.executor._stopped = alone._next
    alone.executor._meshes.connect = lambda *_: None  # type: ignore[method-assign]
    kept = frozenset({0, 1})
    alone.executor.recover(Recovery(1, ("", 0), (), alone._next, 8, kept, {}, definitions=(ADD,)))
    assert [alone.run(1, 0, 1, 2).to_local().tolist() for _ in range(3)] == [[4.0]] * 3
    assert alone.is_short(ADD) and forgotten


def short_commands() -> list[str]:
    """On a rank: the operations of commands that work on parts."""
    return [
        executor._plans[number].op
        for executor in executors.values()
        for number, command in executor._commands.items()
        if "part" in getattr(getattr(command, "__code__", None), "co_names", ())
    ]


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("spec", [["data_parallel"], [None, "model_parallel"], []])
def test_an_optimizer_steps_on_parts(mesh: Mesh, spec: Any, foreach: bool) -> None:
    start = torch.randn(8, 6, dtype=torch.float64)
    plain = torch.nn.Parameter(start.clone())
    ours = torch.nn.Parameter(monarch_nb.distribute(start, mesh, sharding_spec=spec))
    for parameter in (plain, ours):
        optimizer = torch.optim.AdamW([parameter], lr=0.1, foreach=foreach)
        for _ in range(5):
            optimizer.zero_grad()
            (parameter * parameter).sum().backward()
            optimizer.step()
    assert torch.equal(ours.full(), plain)
    found = mesh.execute(short_commands)
    form = "aten._foreach_{}" if foreach else "aten.{}"
    assert {form.format(name) for name in ("lerp_.Scalar", "sqrt.default")} <= set(found)


def commands_of_a_step(mesh: Mesh, num: int, columns: int = 3, **options: Any) -> int:
    """Count the commands of a step over so many parameters."""
    start = [torch.randn(8, columns, dtype=torch.float64) for _ in range(num)]
    ours = [torch.nn.Parameter(monarch_nb.distribute(each, mesh, ["data_parallel"])) for each in start]
    plain = [torch.nn.Parameter(each.clone()) for each in start]
    found = []
    for parameters in (ours, plain):
        optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
        for _ in range(3):
            for n, each in enumerate(parameters):
                each.grad = (n + 1) * torch.ones_like(each)
            before = ours[0].engine.stream.count
            optimizer.step()
            found.append(ours[0].engine.stream.count - before)
        assert optimizer.param_groups[0]["foreach"] is options.get("foreach")
    assert all(torch.equal(a.full(), b) for a, b in zip(ours, plain, strict=True))
    return found[2]


def test_an_optimizer_steps_through_all_parameters_at_once(mesh: Mesh) -> None:
    # in one of them, tensors of an earlier test may be given back, too
    few, many = (min(commands_of_a_step(mesh, num) for _ in range(2)) for num in (2, 20))
    assert few == many < 20


def test_an_optimizer_steps_through_large_parameters_one_by_one(mesh: Mesh) -> None:
    assert commands_of_a_step(mesh, 5, columns=1 << 14) >= 5 * commands_of_a_step(mesh, 1, foreach=False)


def test_an_optimizer_does_as_it_is_told(mesh: Mesh) -> None:
    assert commands_of_a_step(mesh, 20, foreach=False) > 100


def test_parameters_of_two_meshes_are_stepped_one_by_one(mesh: Mesh, own_mesh: Mesh) -> None:
    both = [torch.nn.Parameter(monarch_nb.distribute(torch.ones(4), each, [])) for each in (mesh, own_mesh)]
    optimizer = torch.optim.SGD(both, lr=0.5)
    for each in both:
        each.grad = torch.ones_like(each)
    optimizer.step()
    assert [each.full().tolist() for each in both] == [[0.5] * 4] * 2


def count_sums(counts: bool) -> int:
    """On a rank: count sums over ranks from now on, or stop; return how many there were."""
    executor_module.own_sums, found = 0, getattr(executor_module, "own_sums", 0)
    plain = getattr(dist.all_reduce, "__wrapped__", dist.all_reduce)

    @functools.wraps(plain)
    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        executor_module.own_sums += 1
        return plain(*args, **kwargs)

    dist.all_reduce = all_reduce if counts else plain
    return found


@pytest.mark.filterwarnings("error:.*gathers its inputs")
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD], ids=["adamw", "sgd"])
def test_small_gradients_are_summed_together(mesh: Mesh, kind: Any) -> None:
    """Each rank has the gradients of its rows: an optimiser that steps through a list sums them as one
    message, twice in AdamW, which uses them twice.
    """
    start = [torch.randn(size, dtype=torch.float64) for size in ((6, 6), (6,), (6, 6), (6,))]
    rows = torch.randn(8, 6, dtype=torch.float64)
    ours = [torch.nn.Parameter(monarch_nb.distribute(each, mesh, [])) for each in start]
    plain = [torch.nn.Parameter(each.clone()) for each in start]
    for parameters, x in ((ours, monarch_nb.distribute(rows, mesh, ["data_parallel"])), (plain, rows)):
        optimizer = kind(parameters, lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            one, two, three, four = parameters
            (((x @ one + two).relu() @ three + four) ** 2).sum().backward()
            if parameters is ours:
                assert all(each.grad.placements[0].is_partial() for each in ours)
                mesh.execute(count_sums, True)
            optimizer.step()
            if parameters is ours:
                assert mesh.execute(count_sums, False) == (2 if kind is torch.optim.AdamW else 1)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.full(), other.detach())
