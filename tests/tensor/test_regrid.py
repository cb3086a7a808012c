"""Tensors over several grids of the same ranks are used together, whatever axes each was distributed by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import monarch_nb
from monarch_nb._tensor.metadata import Grid, placements_of
from monarch_nb.distributed import Mesh

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "in place": lambda x, y: x.clone().mul_(y),
    "cat": lambda x, y: torch.cat((x, y)),
    "where": lambda x, y: torch.where(y > 0, x, y),
    "lists": lambda x, y: torch._foreach_add([x, y], [y, x])[1],
    "mm": lambda x, y: x @ y.T,
    "a sum": lambda x, y: x.sum(0) + y,
}
SPECS: list[list[Any]] = [
    [],
    ["data_parallel"],
    [("data_parallel", "model_parallel")],
    ["data_parallel", "model_parallel"],
    [None, "model_parallel"],
]


@pytest.fixture
def line(mesh: Mesh) -> Grid:
    """All ranks of the mesh on one axis, as `parallelize` has them."""
    found: Grid = mesh.tensor_grid().engine.grid((4,), ("data",))
    return found


def over_line(plain: torch.Tensor, line: Grid, spec: list[Any]) -> Any:
    return line.engine.put(plain, line, placements_of(spec, plain.shape, line))


@pytest.mark.parametrize("rows", [8, 7])
@pytest.mark.parametrize("on_line", [[], ["data"], [None, "data"]], ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_results_are_those_of_one_process(
    mesh: Mesh, line: Grid, spec: list[Any], on_line: list[Any], rows: int
) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(rows, 4), torch.randn(rows, 4)
    for name, do in OPERATIONS.items():
        wanted = do(one, other)
        for _ in range(2):
            x, y = monarch_nb.distribute(one.clone(), mesh, spec), over_line(other.clone(), line, on_line)
            torch.testing.assert_close(do(x, y).full(), wanted, msg=name)
            torch.testing.assert_close(do(y, x).full(), do(other, one), msg=name)
            assert torch.equal(x.full(), one) and torch.equal(y.full(), other)


def test_gradients_come_back_over_their_own_grid(mesh: Mesh, line: Grid) -> None:
    one, other = torch.randn(8, 4, requires_grad=True), torch.randn(8, 4, requires_grad=True)
    x = monarch_nb.distribute(one.detach(), mesh, ["data_parallel"]).requires_grad_()
    y = over_line(other.detach(), line, ["data"]).requires_grad_()
    (x * y).square().sum().backward()
    (one * other).square().sum().backward()
    assert torch.allclose(x.grad.full(), one.grad) and torch.allclose(y.grad.full(), other.grad)
    for optimizer in (torch.optim.AdamW([x, y], 0.1), torch.optim.AdamW([one, other], 0.1)):
        optimizer.step()
    assert torch.allclose(x.full(), one, atol=1e-6) and torch.allclose(y.full(), other, atol=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
@pytest.mark.parametrize("spec", [[], ["data_parallel"], [("data_parallel", "model_parallel")]], ids=str)
def test_targets_that_were_distributed_by_hand(mesh: Mesh, strategy: str, spec: list[Any]) -> None:
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model = monarch_nb.parallelize(plain, mesh, strategy)
    x, targets = torch.randn(8, 6), torch.randint(3, (8,))
    given = [monarch_nb.distribute(each, mesh, spec) for each in (x, targets)]
    found, wanted = (
        functional.cross_entropy(model(given[0]), given[1]),
        functional.cross_entropy(plain(x), targets),
    )
    assert found.item() == pytest.approx(wanted.item(), abs=1e-6)
    found.backward()
    wanted.backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad.full(), theirs.grad, atol=1e-6)


def test_a_result_is_distributed_by_the_meshs_axes(mesh: Mesh) -> None:
    plain = nn.Linear(6, 4)
    model = monarch_nb.parallelize(plain, mesh)
    x = torch.randn(8, 6)
    made = monarch_nb.distribute(model(x), mesh, ["data_parallel", "model_parallel"])
    assert made.sharding_spec == ["data_parallel", "model_parallel"]
    assert torch.allclose(made.full(), plain(x), atol=1e-6)
    made.square().sum().backward()
    plain(x).square().sum().backward()
    assert torch.allclose(model.get_parameter("weight").grad.full(), plain.weight.grad, atol=1e-5)


def test_a_mesh_of_one_axis_is_the_modules(own_mesh: Mesh) -> None:
    model = monarch_nb.parallelize(nn.Linear(6, 4), own_mesh)
    assert model(torch.randn(8, 6)).sharding_spec == ["data_parallel", None]
