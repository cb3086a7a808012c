"""Gradients of DDP stay in its buckets, where the next backward writes: those that a program still has are as
they were, and those of one process.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import monarch_nb
from monarch_nb._rank.tensor.buckets import Buckets
from monarch_nb._rank.tensor.private import num_references
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import RemoteException
from tests.tensor.on_ranks import modules_of

STEPS = 8
"""The first two give copies: DDP lays its buckets out."""
Keep = Callable[[int, nn.Module], list[torch.Tensor]]


class Rarely(nn.Module):
    """Layers of which each forward uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(6, 8), nn.ModuleList(nn.Linear(8, 3) for _ in range(2))
        self.which = 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers[self.which](self.first(x))


class FailsOnce(nn.Module):
    """A layer whose backward fails if an input is above 100."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(Checked.apply(self.first(x), x.max()))  # type: ignore[no-untyped-call]


class Checked(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, largest: torch.Tensor) -> Any:
        ctx.largest = largest
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.largest > 100:
            raise ValueError("too large")
        return gradient, None


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def both(mesh: Mesh, made: nn.Module, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Return a module over the mesh, and the same one of this process.

    Args:
        seed: by which `state` finds the module.
    """
    torch.manual_seed(seed)
    return monarch_nb.parallelize(copy.deepcopy(made), mesh, "ddp", sample=torch.randn(8, 6)), made


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [each.grad for each in model.parameters() if each.grad is not None]


def is_same(ours: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return len(ours) == len(wanted) and all(
        torch.allclose(a.full(), b, rtol=1e-4, atol=1e-6)  # type: ignore[attr-defined]
        for a, b in zip(ours, wanted, strict=True)
    )


def buckets(seed: int) -> Buckets:
    """Return a module's buckets, on a rank."""
    gc.collect()
    return modules_of(seed)[0]._buckets


def state(seed: int) -> tuple[bool, int]:
    """On a rank: whether the last backward copied gradients, and how many backwards found some in use."""
    found = buckets(seed)
    return found._copies, found._num_held


def references(seed: int) -> int:
    """On a rank: how many tensors of the program lie in the buckets."""
    found = buckets(seed)
    return sum(map(num_references, found._known)) - sum(found._alone)


def train(model: nn.Module, inputs: list[torch.Tensor], keep: Keep) -> list[list[torch.Tensor]]:
    optimizer, kept = torch.optim.SGD(model.parameters(), 0.1), []
    for number, x in enumerate(inputs):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        kept.append(keep(number, model))
        optimizer.step()
    return kept


def nothing(_: int, model: nn.Module) -> list[torch.Tensor]:
    return []


def some(number: int, model: nn.Module) -> list[torch.Tensor]:
    return gradients(model) if number in (3, 4, 6) else []


def all_of_them(_: int, model: nn.Module) -> list[torch.Tensor]:
    return gradients(model)


def parts(number: int, model: nn.Module) -> list[torch.Tensor]:
    return [each.view(-1)[1:] for each in gradients(model)] if number == 4 else []


def changed(number: int, model: nn.Module) -> list[torch.Tensor]:
    found = gradients(model) if number == 3 else []
    for each in found:
        each.mul_(2)
    return found


@pytest.mark.parametrize("keep", [nothing, some, all_of_them, parts, changed])
def test_gradients_that_a_program_keeps(mesh: Mesh, keep: Keep) -> None:
    seed = 2001 + [nothing, some, all_of_them, parts, changed].index(keep)
    ours, plain = both(mesh, perceptron(), seed)
    inputs = [torch.randn(8, 6) for _ in range(STEPS)]
    kept, wanted = train(ours, inputs, keep), train(plain, inputs, keep)
    for mine, theirs in zip(kept, wanted, strict=True):
        assert is_same(mine, theirs)
    assert is_same(list(ours.parameters()), [each.detach() for each in plain.parameters()])
    copies, num_held = mesh.execute(state, seed)
    assert (num_held > 0) == (keep is not nothing)
    assert copies or keep in (nothing, changed)


def test_one_that_was_kept_for_a_while_costs_copies_for_that_while(mesh: Mesh) -> None:
    ours, _ = both(mesh, perceptron(), 2010)
    found, kept = [], []
    for number in range(STEPS):
        ours.zero_grad()
        ours(torch.randn(8, 6)).sum().backward()
        found.append(mesh.execute(state, 2010)[0])
        kept = gradients(ours) if number == 4 else []
    assert len(kept) == 0 and found == [number in (0, 1, 5) for number in range(STEPS)]


@pytest.mark.parametrize("late", [False, True])
def test_gradients_that_add_up(mesh: Mesh, late: bool) -> None:
    pair = both(mesh, perceptron())
    for _ in range(STEPS):
        x = torch.randn(3, 8, 6)
        for model in pair:
            found = model(x[0]) if late else None  # zero_grad comes after the forward
            model.zero_grad()
            for each in x:
                found = model(each) if found is None else found
                found.square().mean().backward()
                found = None
        assert is_same(gradients(pair[0]), gradients(pair[1]))


def test_a_backward_twice_through_one_forward(mesh: Mesh) -> None:
    pair = both(mesh, perceptron())
    for _ in range(STEPS):
        x, kept = torch.randn(8, 6), []
        for model in pair:
            model.zero_grad()
            found = model(x)
            found.square().mean().backward(retain_graph=True)
            first = gradients(model)
            model.zero_grad()
            found.sum().backward()
            kept.append(first + gradients(model))
        assert is_same(*kept)


def test_layers_that_only_some_forwards_use(mesh: Mesh) -> None:
    pair = both(mesh, Rarely())
    for number in range(STEPS):
        x = torch.randn(2, 8, 6)
        for model in pair:
            model.zero_grad()
            for n, each in enumerate(x):
                model.which = (number + n) % 2
                model(each).square().mean().backward()
        assert is_same(gradients(pair[0]), gradients(pair[1]))


def test_a_backward_that_fails_leaves_those_of_the_one_before(own_mesh: Mesh) -> None:
    ours, plain = both(own_mesh, FailsOnce())
    for _ in range(4):
        x = torch.randn(8, 6)
        for model in (ours, plain):
            model.zero_grad()
            model(x).square().mean().backward()
    kept, wanted = gradients(ours), gradients(plain)
    ours.zero_grad()
    ours(torch.full((8, 6), 101.0)).sum().backward()
    with pytest.raises(RemoteException, match="too large"):
        next(ours.parameters()).grad.full()  # type: ignore[union-attr]
    assert is_same(kept, wanted)


def test_gradients_have_no_memory_of_their_own(mesh: Mesh) -> None:
    ours, _ = both(mesh, perceptron(), 2011)
    found = []
    for _ in range(4):
        ours.zero_grad()
        ours(torch.randn(8, 6)).sum().backward()
        found.append(mesh.execute(references, 2011))
    num = len(list(ours.parameters()))
    assert found[2:] == [num, num], "the first two give copies"


def num_modules(seed: int) -> int:
    """On a rank: how many modules there are with this seed."""
    gc.collect()
    return len(modules_of(seed))


def free_now(mesh: Mesh) -> None:
    """Have the ranks free what isn't used: a large value is freed at once, with all before it."""
    monarch_nb.distribute(torch.zeros(1 << 20), mesh, [None])
    monarch_nb.distribute(torch.zeros(4), mesh, [None]).add(1)


def test_a_module_that_nobody_has_any_more_is_freed(mesh: Mesh) -> None:
    ours, _ = both(mesh, perceptron(), 2012)
    ours(torch.randn(8, 6)).sum().backward()
    assert mesh.execute(num_modules, 2012) == 1
    del ours
    gc.collect()
    free_now(mesh)
    assert mesh.execute(num_modules, 2012) == 0
