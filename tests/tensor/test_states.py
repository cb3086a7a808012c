"""Modules that keep something between forwards, get or return objects: as on one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import monarch_nb
from monarch_nb._parallel.module import parallel_of
from monarch_nb.distributed import Mesh


class Cache:
    """An object that torch's pytree doesn't know."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Any]] = []
        self.length = 0

    def update(self, keys: torch.Tensor) -> torch.Tensor:
        if not self.layers:
            self.layers.append({"keys": torch.tensor([]), "kind": "keys"})
        kept = self.layers[0]
        kept["keys"] = torch.cat([kept["keys"], keys], dim=-2)
        self.length += keys.shape[-2]
        return kept["keys"]


class Cached(nn.Module):
    """Attention to all that was given before."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> tuple[torch.Tensor, Cache]:
        cache = Cache() if cache is None else cache
        keys = cache.update(self.keys(x))
        shares = (x @ keys.transpose(-1, -2)).softmax(-1)
        return self.last(shares @ keys), cache


class Shows(nn.Module):
    """Attributes that a forward sets: what a program reads, what ranks need, numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.mask: torch.Tensor | None = None
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        if self.mask is None:
            self.mask = torch.arange(8) % 2
        self.num_calls += 1
        return self.last(self.first(x).relu() * self.mask)


class Loss(Shows):
    """A part of the loss in an attribute."""

    def forward(self, x: torch.Tensor) -> Any:
        found = super().forward(x)
        self.extra = found.square().mean()
        return found


class Listed(Shows):
    """Activations in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> Any:
        found = super().forward(x)
        self.seen.append(found)
        return found


class Average(nn.Module):
    """A moving average in a buffer that is replaced, of parameters or of the batch."""

    def __init__(self, of_batch: bool) -> None:
        super().__init__()
        self.linear, self.of_batch = nn.Linear(6, 3), of_batch
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> Any:
        found = self.linear(x)
        new = found.detach().mean(0) if self.of_batch else self.linear.bias.detach()
        self.mean = 0.5 * self.mean + 0.5 * new
        return found - self.mean


@pytest.fixture(params=["auto", "ddp", "fsdp"])
def put(request: pytest.FixtureRequest, mesh: Mesh) -> Callable[[nn.Module], Any]:
    return lambda module: monarch_nb.parallelize(module, mesh, request.param)


def alike(ours: Any, theirs: torch.Tensor) -> bool:
    found = ours.full() if isinstance(ours, monarch_nb.Tensor) else ours
    return torch.allclose(found, theirs, atol=1e-5)


def check_gradients(model: Any, plain: nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (theirs.grad is None and ours.grad is None) or alike(ours.grad, theirs.grad)


def on_ranks(model: Any) -> bool:
    """Say whether ranks run the module's layers."""
    return parallel_of(model)._built is not None


def test_an_object_that_is_returned(put: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(0)
    plain = Cached()
    model, x = put(plain), torch.randn(8, 5, 6)
    for _ in range(2):
        (ours, kept), (theirs, wanted) = model(x), plain(x)
        assert alike(ours, theirs)
        assert type(kept) is Cache
        assert kept.length == 5
        assert alike(kept.layers[0]["keys"], wanted.layers[0]["keys"])
    (ours.square().mean() + kept.layers[0]["keys"].mean()).backward()
    (theirs.square().mean() + wanted.layers[0]["keys"].mean()).backward()
    check_gradients(model, plain)
    assert on_ranks(model)
    assert "looks across" not in str(monarch_nb.explain(model))


def test_an_object_that_is_given_and_changed(put: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(0)
    plain = Cached()
    model, caches = put(plain), (Cache(), Cache())
    for length in (5, 1, 1):
        x = torch.randn(8, length, 6)
        ours, theirs = model(x, caches[0])[0], plain(x, caches[1])[0]
        assert alike(ours, theirs)
    assert caches[0].length == 7
    assert alike(caches[0].layers[0]["keys"], caches[1].layers[0]["keys"])
    assert "it gets a Cache, which it may change" in str(monarch_nb.explain(model))


@pytest.mark.parametrize(
    "given", [np.ones(3), slice(0, 2), {1, 2}, object(), [np.ones(2)]], ids=lambda x: type(x).__name__
)
def test_arguments_of_all_kinds(mesh: Mesh, given: Any) -> None:
    class Takes(nn.Linear):
        def forward(self, x: torch.Tensor, other: Any = None) -> Any:
            assert type(other) is type(given)
            return super().forward(x)

    plain = Takes(6, 3)
    model, x = monarch_nb.parallelize(plain, mesh), torch.randn(8, 6)
    assert alike(model(x, given), plain(x, given))
    assert alike(model(x, other=given), plain(x, given))


def test_what_only_ranks_need_stays_there(put: Callable[[nn.Module], Any]) -> None:
    plain = Shows()
    model, x = put(plain), torch.randn(8, 6)
    for _ in range(2):
        ours = model(x)
        ours.sum().backward()
    assert on_ranks(model)
    assert plain.mask is None, "a run without values leaves nothing behind"
    assert plain.num_calls == 0
    assert alike(ours, plain(x))


@pytest.mark.parametrize("kind", [Loss, Listed])
def test_tensors_that_a_program_reads(put: Callable[[nn.Module], Any], kind: Any) -> None:
    torch.manual_seed(0)
    plain = kind()
    model = put(plain)
    assert not vars(plain).get("seen")
    x, targets = torch.randn(8, 6), torch.randint(3, (8,))
    for each in (model, plain):
        loss = functional.cross_entropy(each(x), targets)
        (loss + (each.extra if kind is Loss else each.seen[0].square().mean())).backward()
    check_gradients(model, plain)
    assert "which this program may read" in str(monarch_nb.explain(model))


@pytest.mark.parametrize(
    ("of_batch", "strategy"), [(False, "auto"), (False, "ddp"), (False, "fsdp"), (True, "auto")]
)
def test_buffers_that_are_replaced(mesh: Mesh, of_batch: bool, strategy: str) -> None:
    torch.manual_seed(0)
    plain = Average(of_batch)
    model = monarch_nb.parallelize(plain, mesh, strategy)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, plain)]
    for _ in range(3):
        x = torch.randn(8, 6)
        for each, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
        assert alike(model.mean, plain.mean)
        assert alike(model.linear.weight, plain.linear.weight)
    assert on_ranks(model)
    assert ("looks across the batch" in str(monarch_nb.explain(model))) is of_batch


def test_buffers_that_a_program_replaces(mesh: Mesh) -> None:
    """A batch that can't be split runs here, and so does an assignment of the user's."""
    torch.manual_seed(0)
    plain = Average(of_batch=False)
    model = monarch_nb.parallelize(plain, mesh)
    for size in (8, 7, 8, 6, 8):
        x = torch.randn(size, 6)
        assert alike(model(x), plain(x))
        assert alike(model.mean, plain.mean)
    for each in (model, plain):
        each.mean = torch.ones(3)
    x = torch.randn(8, 6)
    assert alike(model(x), plain(x))
    assert alike(model.mean, plain.mean)
    assert on_ranks(model)


class Frequencies(nn.Module):
    """Parameters of two dtypes, and attention with a mask of which a row may leave nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4, dtype=torch.cfloat))
        self.attention, self.last = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, is_padding: torch.Tensor) -> Any:
        x = torch.fft.irfft(torch.fft.rfft(x) * self.scale, n=6)
        found, shares = self.attention(x, x, x, key_padding_mask=is_padding)
        return self.last(found), shares


def test_dtypes_and_masks(put: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(0)
    plain = Frequencies()
    model = put(plain)
    x, is_padding = torch.randn(8, 5, 6), torch.zeros(8, 5, dtype=torch.bool)
    is_padding[3:, 3:] = True
    for each in (model, plain):
        found, shares = each(x, is_padding)
        (found.square().mean() + shares.square().sum()).backward()
    check_gradients(model, plain)
    assert "looks across" not in str(monarch_nb.explain(model))
