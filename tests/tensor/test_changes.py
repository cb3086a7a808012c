"""Changes of a module after it was put on the ranks: they count there, or an error says what to type."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import monarch_nb
from monarch_nb._parallel.module import parallel_of
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError

STRATEGIES = ["ddp", "fsdp"]


class Scaled(nn.Module):
    """A module with attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(6, 8), nn.Dropout(0.0), nn.Linear(8, 3)
        self.scale = 1.0
        self.activation: Callable[[Any], Any] = torch.tanh
        self.uses_other = False
        self.factors, self.config = [1.0, 2.0], SimpleNamespace(shift=0.5, names={"kind": "sum"})
        self.first.config = self.config  # type: ignore[assignment]  # as all layers of a model have it
        self.extra = torch.zeros(3)
        self._gain, self._weights = 1.0, {"all": 1.0}
        self.table, self.large = np.ones(2000), [1.0] + [0.0] * 1999

    def set_gain(self, gain: float) -> None:
        self._gain = gain

    def forward(self, x: torch.Tensor) -> Any:
        x = self.activation(self.first(x)) if self.uses_other else self.first(x).relu()
        x = self.second(self.drop(x)) * self.scale * self.factors[0] + self.extra
        x = x * self._gain * self._weights["all"] * float(self.table[7]) * sum(self.large)
        return x + self.first.config.shift if self.config.names["kind"] == "sum" else x * self.config.shift


@pytest.fixture(params=STRATEGIES)
def both(request: pytest.FixtureRequest, mesh: Mesh) -> tuple[Scaled, Any]:
    """A module, and the same on the ranks, which was called before."""
    torch.manual_seed(0)
    plain = Scaled()
    model = monarch_nb.parallelize(plain, mesh, request.param)
    model(torch.randn(8, 6)).sum().backward()
    return plain, model


def check(plain: nn.Module, model: Any) -> None:
    x = torch.randn(8, 6)
    results = []
    for each in (plain, model):
        each.zero_grad()
        results.append(each(x))
        results[-1].square().sum().backward()
    assert torch.allclose(results[1].full(), results[0], atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad.full(), theirs.grad, atol=1e-4, rtol=1e-4)


def test_attributes(both: tuple[Scaled, Any]) -> None:
    plain, model = both
    for each in both:
        each.scale = 3.0
    check(plain, model)
    for each in both:
        each.uses_other = True
    check(plain, model)
    for each in both:
        each.activation = torch.sin
    check(plain, model)
    model.drop.p = 1.0
    bias = (plain.second.bias * 3).expand(8, 3)
    assert torch.allclose(model(torch.randn(8, 6)).full(), bias + 0.5, atol=1e-6)
    assert plain.drop.p == 0.0, "the user's own module stays as it is"
    model.eval()
    model(torch.randn(8, 6))
    assert plain.training


def test_attributes_that_change_in_place(both: tuple[Scaled, Any]) -> None:
    for change in (
        lambda each: each.factors.__setitem__(0, 5.0),
        lambda each: setattr(each.config, "shift", 2.0),
        lambda each: each.config.names.update(kind="product"),
        lambda each: setattr(each, "factors", [0.25]),
        lambda each: each.extra.add_(1),
        lambda each: setattr(each, "extra", torch.full((3,), -1.0)),
        lambda each: each.set_gain(0.5),
        lambda each: each._weights.update(all=3.0),
        lambda each: each.table.__setitem__(7, 0.25),
        lambda each: each.large.__setitem__(1999, -2.0),
    ):
        for each in both:
            change(each)
        check(*both)


def test_only_changes_are_sent(both: tuple[Scaled, Any]) -> None:
    _, model = both
    built = parallel_of(model)._built
    model.factors[0] = 1.0
    model(torch.randn(8, 6))
    assert parallel_of(model)._built is built


def test_a_number_that_changes_in_each_step_has_nothing_built_again(both: tuple[Scaled, Any]) -> None:
    plain, model = both
    parallel = parallel_of(model)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in both]
    for step in range(4):
        spec = parallel._built[1] if parallel._built else None
        for each in both:
            each.scale = 1.0 + step
        check(plain, model)
        for optimizer in optimizers:
            optimizer.step()
        assert parallel._built is not None and parallel._built[1] is spec


def test_replays_with_a_number_that_goes_back(both: tuple[Scaled, Any], mesh: Mesh) -> None:
    plain, model = both
    forward = monarch_nb.compile(lambda x: model(x))
    whole = torch.randn(8, 6)
    x = monarch_nb.distribute(whole, mesh, ["data_parallel"])
    for scale in (1.0, 2.0, 1.0, 3.0, 2.0):
        for each in both:
            each.scale = scale
        before = forward.num_replayed
        with torch.no_grad():
            for _ in range(6):
                assert torch.allclose(forward(x).full(), plain(whole), atol=1e-5)
        assert forward.num_replayed > before


def test_values_that_are_set(both: tuple[Scaled, Any]) -> None:
    plain, model = both
    for each in both:
        each.second.bias.data.add_(1)
        with torch.no_grad():
            each.first.weight.mul_(2)
    check(plain, model)
    like = model.second.bias
    model.second.bias.data = torch.zeros_like(like.detach())
    plain.second.bias.data = torch.zeros(3)
    check(plain, model)
    model.second.bias = nn.Parameter(torch.ones_like(model.second.bias.detach()))
    plain.second.bias = nn.Parameter(torch.ones(3))
    check(plain, model)


def replace_layer(model: Any) -> None:
    model.second = nn.Linear(8, 3)


def add_layer(model: Any) -> None:
    model.third = nn.ReLU()


def lay_out(model: Any) -> None:
    weight = model.first.weight.detach()
    wanted = [] if weight.sharding_spec[0] else ["data_parallel"]
    model.first.weight.data = monarch_nb.distribute(weight, model.mesh_for_test, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_layer, r"layers of this module were added, replaced .*parallelize\(module, mesh\) again"),
        (add_layer, "layers of this module were added"),
        (lambda model: model.to(torch.bfloat16), r"first.weight is torch.bfloat16 now, .*module.to\("),
        (lay_out, r'first.weight was replaced by .*get_parameter\("first.weight"\)\.copy_\(values\)'),
    ],
    ids=["a layer", "one more", "a dtype", "a layout"],
)  # fmt: skip
def test_what_ranks_cant_take_on(both: tuple[Scaled, Any], mesh: Mesh, change: Any, message: str) -> None:
    _, model = both
    model.mesh_for_test = mesh
    change(model)
    with pytest.raises(MeshUsageError, match=message):
        model(torch.randn(8, 6))


def test_a_checkpoint_of_the_ranks_for_one_process(both: tuple[Scaled, Any]) -> None:
    plain, model = both
    with torch.no_grad():
        model.first.weight.add_(1)
    other = copy.deepcopy(plain)
    other.load_state_dict(model.state_dict())
    x = torch.randn(8, 6)
    assert torch.allclose(other(x), model(x).full(), atol=1e-5)
    assert not isinstance(other.first.weight, monarch_nb.Tensor)
