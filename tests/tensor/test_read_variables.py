"""Variables of a notebook that a module's methods read: what a cell changes of them counts on the ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import monarch_nb
from monarch_nb.distributed import Mesh

CELL = """
import torch
from torch import nn
from torch.nn import functional as F

scale, powers, num_calls, unused = 2.0, [1.0], 0, 0

def activation(x):
    return torch.tanh(x)

def helper(x):
    return activation(x) * scale

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    @property
    def bias(self):
        return sum(powers)

    def forward(self, x):
        return helper(F.relu(self.layer(x))) + self.bias

class Counting(Model):
    def forward(self, x):
        global num_calls
        num_calls += 1
        return super().forward(x)
"""
CHANGES = {
    "a number": "scale = 3.0",
    "an item": "powers.append(4.0)",
    "a function": "def activation(x):\n    return torch.sin(x)",
    "a function that calls it": "def helper(x):\n    return activation(x) + scale",
    "a method": "Model.forward = lambda self, x: self.layer(x) * scale",
    "a result's shape": "def helper(x):\n    return activation(x).repeat(1, 2) * scale",
}


@pytest.fixture
def cell() -> dict[str, Any]:
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(CELL, made)
    torch.manual_seed(0)
    return made


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("what", CHANGES)
def test_what_a_cell_changes_counts(mesh: Mesh, cell: dict[str, Any], what: str, strategy: str) -> None:
    plain = cell["Model"]()
    model = monarch_nb.parallelize(plain, mesh, strategy)
    x = torch.randn(8, 3)
    assert torch.allclose(model(x).full(), plain(x), atol=1e-6)
    before = plain(x).detach()
    exec(CHANGES[what], cell)
    for _ in range(2):
        found, wanted = model(x), plain(x)
        assert torch.allclose(found.full(), wanted, atol=1e-6)
        assert before.shape != wanted.shape or not torch.allclose(wanted, before)
    found.sum().backward()
    wanted.sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad.full(), theirs.grad, atol=1e-5)


def commands(mesh: Mesh, do: Any) -> int:
    engine = mesh.tensor_grid().engine
    before = engine.stream.count
    do()
    return engine.stream.count - before


@pytest.mark.parametrize("name", ["Model", "Counting"])
def test_a_module_is_not_sent_again_for_nothing(mesh: Mesh, cell: dict[str, Any], name: str) -> None:
    """Nor because its forward counts in a variable: each rank counts its own."""
    model = monarch_nb.parallelize(cell[name](), mesh, "ddp")
    x = monarch_nb.distribute(torch.randn(8, 3), mesh, ["data_parallel"])
    with torch.no_grad():
        model(x), model(x)
        before = mesh.tensor_grid().engine.num_misses
        nums = [commands(mesh, lambda: model(x)) for _ in range(3)]
        cell["unused"] = 5
        nums += [commands(mesh, lambda: model(x)) for _ in range(3)]
        assert mesh.tensor_grid().engine.num_misses == before
    assert max(nums) <= min(nums) + 1, "slots that are free are told now and then"
