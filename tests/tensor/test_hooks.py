"""Hooks on layers are called, wherever these run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import monarch_nb
from monarch_nb.distributed import Mesh


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_layer_that_gets_a_hook_runs_here_as_long_as_it_has_it(mesh: Mesh, strategy: str) -> None:
    torch.manual_seed(0)
    plain = perceptron()
    model = monarch_nb.parallelize(plain, mesh, strategy)
    x = torch.randn(8, 6)
    model(x)
    assert monarch_nb.explain(model).slow == ""
    seen: list[Any] = []
    hooks = [
        model.get_submodule("1").register_forward_hook(lambda _layer, _args, out: seen.append(out)),
        model.get_submodule("2").register_full_backward_hook(lambda _layer, _in, out: seen.append(out[0])),
    ]
    model(x).square().sum().backward()
    plain(x).square().sum().backward()
    assert torch.allclose(seen[0].full(), plain[:2](x), atol=1e-6) and seen[1].shape == (8, 3)
    assert "1 has hooks of this program" in monarch_nb.explain(model).slow
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad.full(), theirs.grad, atol=1e-5)
        ours.grad = theirs.grad = None
    for each in hooks:
        each.remove()
    model(x).square().sum().backward()
    plain(x).square().sum().backward()
    assert len(seen) == 2 and monarch_nb.explain(model).slow == ""
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad.full(), theirs.grad, atol=1e-5)


def test_hooks_of_the_module_itself_and_of_its_parameters(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(perceptron(), mesh)
    seen = []
    model.register_forward_pre_hook(lambda _layer, args: (args[0] * 0,))
    model.register_forward_hook(lambda _layer, _args, out: seen.append(out.shape))
    model.get_parameter("0.bias").register_hook(lambda gradient: gradient * 2)
    model.get_parameter("0.bias").register_post_accumulate_grad_hook(lambda each: seen.append(each.shape))
    model(torch.randn(8, 6)).sum().backward()
    assert seen == [(8, 3), (8,)] and monarch_nb.explain(model).slow == ""
    assert torch.equal(model.get_parameter("0.weight").grad.full(), torch.zeros(8, 6))


def test_what_a_hook_changes_counts(mesh: Mesh) -> None:
    plain = perceptron()
    model = monarch_nb.parallelize(plain, mesh)
    x = torch.randn(8, 6)
    for each in (plain, model):
        each.get_submodule("1").register_forward_hook(lambda _layer, _args, out: out + 1)
    assert torch.allclose(model(x).full(), plain(x), atol=1e-6)
