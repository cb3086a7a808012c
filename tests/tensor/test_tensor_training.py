"""Ordinary training loops: the same as in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn, optim

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError
from tests.tensor.models import CASES, train


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    """AdamW divides small gradients by their size: what sums differ by in single precision, it makes
    large.
    """
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


class SimpleTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.blocks(self.embed(x)))
        return found


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embed(x)).flatten(0, 1)
        return found


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def tokens() -> torch.Tensor:
    return torch.randint(11, (8, 5))


MODELS: dict[
    str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, torch.Tensor]], Callable[..., Any]]
] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3)),
        lambda: (torch.randn(8, 6), torch.randn(8, 3)),
        nn.MSELoss(),
    ),
    "transformer": (SimpleTransformer, lambda: (torch.randn(8, 5, 6), torch.randn(8, 5, 3)), nn.MSELoss()),
    "tied embeddings": (Tied, lambda: (tokens(), tokens().flatten()), nn.CrossEntropyLoss()),
    "batch norm": (normed, lambda: (torch.randn(8, 2, 4, 4), torch.randn(8, 3)), nn.MSELoss()),
    "lstm": (
        lambda: Last(nn.LSTM(6, 3, batch_first=True)),
        lambda: (torch.randn(8, 4, 6), torch.randn(8, 4, 3)),
        nn.MSELoss(),
    ),
}


class Last(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)[0]
        return found


@pytest.mark.filterwarnings("ignore:aten")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", MODELS)
def test_a_loop_is_that_of_one_process(mesh: Mesh, name: str, strategy: str) -> None:
    make_model, make_batch, criterion = MODELS[name]
    plain = make_model()
    model = monarch_nb.module_to_mesh(plain, mesh, strategy=strategy)
    batches = [make_batch() for _ in range(4)]
    found = train(model, batches, criterion)
    assert found == pytest.approx(train(plain, batches, criterion), abs=1e-9)
    for ours, theirs in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.allclose(ours.full(), theirs, atol=1e-6)


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "foreach adamw": lambda p: optim.AdamW(p, lr=1e-3, foreach=True),
    "adam amsgrad": lambda p: optim.Adam(p, lr=1e-3, amsgrad=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3),
}


@pytest.mark.filterwarnings("ignore:aten")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(mesh: Mesh, name: str) -> None:
    make_model, make_batch, criterion = MODELS["mlp"]
    plain = make_model()
    model = monarch_nb.module_to_mesh(plain, mesh)
    batches = [make_batch() for _ in range(3)]
    found = train(model, batches, criterion, OPTIMIZERS[name])
    assert found == pytest.approx(train(plain, batches, criterion, OPTIMIZERS[name]), abs=1e-9)


def test_a_step_is_the_same_commands_again(mesh: Mesh) -> None:
    make_model, make_batch, criterion = MODELS["mlp"]
    model = monarch_nb.module_to_mesh(make_model(), mesh)
    optimizer = optim.AdamW(model.parameters())
    engine = next(model.parameters()).engine
    misses = []
    for _ in range(4):
        inputs, targets = make_batch()
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
        misses.append(engine.num_misses)
    assert misses[3] == misses[2], "something that changes with each step is in a key"


def test_the_module_stays_as_it_is_and_ties_stay_ties(mesh: Mesh) -> None:
    plain = Tied()
    before = copy.deepcopy(plain.state_dict())
    model = monarch_nb.module_to_mesh(plain, mesh)
    assert type(plain.embed.weight.data) is torch.Tensor and model.embed.weight is model.head.weight
    assert (
        isinstance(model, Tied)
        and isinstance(model.embed.weight, nn.Parameter)
        and len(list(model.parameters())) == 1
    )
    with torch.no_grad():
        model.embed.weight.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), plain.state_dict().values(), strict=True))


def test_states_are_saved_and_loaded(mesh: Mesh, tmp_path: Any) -> None:
    plain = MODELS["mlp"][0]()
    model = monarch_nb.module_to_mesh(plain, mesh, strategy="fsdp")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = MODELS["mlp"][0]()
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), plain.parameters(), strict=True))
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert all(torch.equal(a.full(), b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:aten")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", CASES)
def test_a_loop_in_single_precision(mesh: Mesh, name: str, strategy: str) -> None:
    """Its operations are others on a CPU: attention in one kernel, LSTM with a workspace."""
    case = CASES[name]
    with single_precision():
        plain = case.make()
        model = monarch_nb.module_to_mesh(plain, mesh, strategy=strategy)
        batches = [case.batch() for _ in range(3)]
        found = train(model, batches, case.loss)
        assert found == pytest.approx(train(plain, batches, case.loss), rel=1e-4)


@contextmanager
def single_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_modules_that_cant_be_taken(mesh: Mesh) -> None:
    with torch.device("meta"):
        nothing = nn.Linear(2, 2)
    with pytest.raises(
        MeshUsageError,
        match=r"weight has no numbers yet: build the module on the CPU, or module.to_empty\(device='cpu'\)",
    ):
        monarch_nb.module_to_mesh(nothing, mesh)
    with pytest.raises(MeshUsageError, match=r"has no numbers yet.*a lazy one: call it once"):
        monarch_nb.module_to_mesh(nn.LazyLinear(2), mesh)
    with pytest.raises(MeshUsageError, match="strategy is one of 'ddp', 'fsdp', 'tp'; not 'zero'"):
        monarch_nb.module_to_mesh(nn.Linear(2, 2), mesh, strategy="zero")
    model = monarch_nb.module_to_mesh(nn.Linear(2, 2), mesh)
    with pytest.raises(MeshUsageError, match="weight is on a mesh already"):
        monarch_nb.module_to_mesh(model, mesh)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_parameter_without_dimensions(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(Scaled(), mesh, strategy="fsdp")
    model(torch.ones(4, 3)).sum().backward()
    assert model.scale.grad.item() == 12.0


def test_an_input_that_wants_a_gradient_gets_a_plain_one(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(Scaled(), mesh)
    x = torch.ones(4, 3, requires_grad=True)
    model(x).sum().backward()
    assert type(x.grad) is torch.Tensor and torch.equal(x.grad, torch.full((4, 3), 2.0))
