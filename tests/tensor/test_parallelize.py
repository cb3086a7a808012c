"""Modules that run on the ranks: the loop stays as it is, and what comes out is that of one process."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError, RemoteException, ShapeError, ShardingError
from tests.tensor.models import CASES, GPT, sparse, train


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    """AdamW divides small gradients by their size: what sums differ by in single precision, it makes
    large.
    """
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


HYBRID = ("gpt", "batch norm", "tied embeddings")
WAYS = [(n, s) for n in CASES for s in ("auto", "fsdp", "hsdp") if s != "hsdp" or n in HYBRID]


@pytest.mark.parametrize(("name", "strategy"), WAYS)
def test_ten_steps_are_those_of_one_process(mesh: Mesh, name: str, strategy: str) -> None:
    case = CASES[name]
    plain = case.make()
    replicate = () if strategy == "auto" else case.whole
    model = monarch_nb.parallelize(plain, mesh, strategy, replicate=replicate)
    batches = [case.batch() for _ in range(10)]
    found = train(model, batches, case.loss)
    assert found == pytest.approx(train(plain, batches, case.loss), abs=1e-9)
    for ours, theirs in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.allclose(ours.full(), theirs, atol=1e-6)
    dry = monarch_nb.explain(model).dry
    assert dry is not None
    assert tuple(f.path for f in dry.findings) == (case.whole if strategy == "auto" else ())
    assert monarch_nb.explain(model).slow == ""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_input_that_was_used_before(mesh: Mesh, strategy: str) -> None:
    """Ranks have it whole then, and the module's layers want their rows of it."""
    plain, x, scale = nn.Linear(6, 3), torch.randn(8, 6), torch.ones(6)
    model = monarch_nb.parallelize(plain, mesh, strategy)
    for each, by in ((model, monarch_nb.distribute(scale, mesh)), (plain, scale)):
        target = (by * x).sum(1, keepdim=True)
        (each(x) - target).square().mean().backward()
    assert torch.allclose(model.weight.grad.full(), plain.weight.grad)


def test_a_layer_that_looks_across_the_batch_is_an_error_by_hand(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(sparse(), mesh, "fsdp")
    with pytest.raises(ShapeError) as caught:
        model(torch.randn(8, 6))
    text = str(caught.value)
    assert "aten.mul.Tensor can't be done by 4 ranks, each on its 2 of 8 rows" in text
    assert "in forward of 1 (SparseAttention)" in text and "models.py, line" in text
    assert "score = (x * self.gate).sum(-1)" in text
    assert "1.gate float64[8, 1] is a parameter: whole on every rank" in text
    assert "float64[2, 6] is a rank's part of float64[8, 6], split along dim 0" in text
    assert 'replicate=["1"]' in text and 'strategy="auto"' in text
    with pytest.raises(
        ShardingError, match=r"(?s)1 \(BatchNorm2d\).*its statistics|statistics.*1 \(BatchNorm2d\)"
    ):
        monarch_nb.parallelize(CASES["batch norm"].make(), mesh, "ddp", sample=torch.randn(8, 2, 4, 4))


def test_what_one_process_raises_is_raised_as_there(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(nn.Linear(3, 3), mesh)
    with pytest.raises(RuntimeError, match=r"(?s)5.*3"):
        model(torch.randn(8, 5))
    outer = monarch_nb.parallelize(nn.Sequential(nn.Linear(5, 5), WrongPlaces()), mesh)
    with pytest.raises(RuntimeError, match=r"(?s)4.*5") as raised:
        outer(torch.randn(8, 5))
    assert re.search(r"forward of 1, .*, line \d+, in forward: .*x \+ self.places", raised.value.__notes__[0])
    assert raised.value.__context__ is None, "nothing is shown above it"


class WrongPlaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.places


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0][:1].repeat(3, 1)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = WrongBackward.apply(x)
        return found


class Picky(nn.Module):
    """Raises because of numbers, which only ranks have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, x[:, 0].long().clamp(min=50))


def test_what_fails_on_ranks_names_the_layer(mesh: Mesh) -> None:
    layers = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), Doubled()), nn.Linear(6, 3))
    model = monarch_nb.parallelize(layers, mesh)
    loss = model(torch.randn(8, 6)).sum()
    loss.backward()
    with pytest.raises(
        RemoteException, match=r"(?s)the module's backward failed on ranks 0-3.*invalid gradient"
    ) as caught:
        model[0].weight.grad.full()
    assert "in backward of 1.1 (Doubled)" in str(caught.value)
    assert "loss.backward()" in str(caught.value)
    assert torch.isfinite(loss.full()), "what was made before is good still"
    picky = monarch_nb.parallelize(nn.Sequential(nn.Linear(6, 6), Picky()), mesh, "ddp", replicate=["1"])
    with pytest.raises(RemoteException, match=r"(?s)the module's forward failed.*in forward of 1 \(Picky\)"):
        picky(torch.randn(8, 6)).sum().item()


def test_a_batch_that_cant_be_split_runs_operation_by_operation(mesh: Mesh) -> None:
    plain = nn.Linear(3, 2)
    model = monarch_nb.parallelize(plain, mesh, "fsdp")
    whole, odd = torch.randn(8, 3), torch.randn(5, 3)
    for inputs in (whole, odd):
        model.zero_grad()
        plain.zero_grad()
        model(inputs).square().sum().backward()
        plain(inputs).square().sum().backward()
        assert torch.allclose(model.weight.grad.full(), plain.weight.grad)


def test_a_forward_that_needs_numbers_runs_operation_by_operation(mesh: Mesh) -> None:
    class Deciding(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = super().forward(x)
            return found if found.sum() > 0 else -found

    plain = Deciding(3, 2)
    x = torch.randn(8, 3)
    model = monarch_nb.parallelize(plain, mesh, sample=x)
    assert "can't be followed without numbers" in str(monarch_nb.explain(model))
    model = monarch_nb.parallelize(plain, mesh)
    assert torch.allclose(model(x).full(), plain(x))
    assert "can't be followed without numbers" in str(monarch_nb.explain(model))


def test_histories(mesh: Mesh) -> None:
    plain = nn.Linear(3, 2)
    model = monarch_nb.parallelize(plain, mesh)
    one, two = torch.randn(8, 3), torch.randn(8, 3, requires_grad=True)
    for each in (model, plain):
        first, second = each(one).square().mean(), each(two).square().mean()
        first.backward()
        (second * 2).backward(retain_graph=True)
        second.backward()
    assert torch.allclose(model.weight.grad.full(), plain.weight.grad)
    found, two.grad = two.grad, None
    assert type(found) is torch.Tensor
    plain(two).square().mean().mul(6).backward()
    assert torch.allclose(found, two.grad)
    with torch.no_grad():
        assert not model(one).requires_grad
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        second.backward()


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor, *, by: dict[str, torch.Tensor]) -> dict[str, Any]:
        out = self.used(x) * self.scale + self.frozen * by["by"]
        return {"out": out, "loss": out.square().mean(), "name": "unused"}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_parameters_of_all_kinds(mesh: Mesh, strategy: str) -> None:
    plain = Unused()
    model = monarch_nb.parallelize(plain, mesh, strategy)
    x, by = torch.randn(8, 3), torch.randn(2)
    found, wanted = model(x, by={"by": by}), plain(x, by={"by": by})
    assert found["name"] == "unused" and torch.allclose(found["out"].full(), wanted["out"])
    for each in (found, wanted):
        (each["loss"] + each["out"].sum()).backward()
    for name, each in model.named_parameters():
        theirs = plain.get_parameter(name).grad
        assert (each.grad is None) == (theirs is None), name
        assert theirs is None or torch.allclose(each.grad.full(), theirs), name


def test_what_is_chosen_and_why(mesh: Mesh) -> None:
    x = torch.randint(17, (8, 6))
    model = monarch_nb.parallelize(GPT(), mesh, sample=x, memory=8 << 30)
    found = monarch_nb.explain(model)
    text = str(found)
    assert found.taken.strategy == "ddp" and "taken  DDP" in text and "FSDP2" in text
    assert found.dry is not None and found.dry.num_flops > 0
    gib = 1 << 30
    small = monarch_nb.parallelize(GPT(width=64), mesh, sample=x, memory=gib + 1_900_000)
    message = monarch_nb.explain(small)
    assert message.taken.strategy == "fsdp" and message.groups == ("blocks.0", "blocks.1")
    assert "DDP  " in str(message) and "doesn't fit: needs 1." in str(message)
    assert "<table>" in message._repr_html_()
    hybrid = monarch_nb.parallelize(GPT(), mesh, "hsdp")
    assert "asked  HSDP" in str(monarch_nb.explain(hybrid))
    assert "sharded over 2 ranks, replicated over 2; 2 groups" in str(monarch_nb.explain(hybrid))
    tied = monarch_nb.parallelize(CASES["tied embeddings"].make(), mesh)
    assert "embed.weight = head.weight" in str(monarch_nb.explain(tied))


@pytest.mark.parametrize("words", [{"checkpoint": True}, {"precision": "bf16"}, {"compile": True}], ids=str)
def test_ways_to_run(mesh: Mesh, words: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float32)
    case = CASES["mlp" if "compile" in words else "gpt"]
    plain = case.make()
    model = monarch_nb.parallelize(plain, mesh, "fsdp", **words)
    batches = [case.batch() for _ in range(2)]
    tolerance = 0.05 if "precision" in words else 1e-5
    assert train(model, batches, case.loss) == pytest.approx(train(plain, batches, case.loss), abs=tolerance)
    assert next(model.parameters()).dtype == torch.float32


def test_what_is_typed_wrongly(mesh: Mesh) -> None:
    plain = nn.Sequential(nn.Linear(3, 2))
    for words, message in (
        ({"strategy": "zero"}, "strategy is one of 'auto', 'ddp', 'fsdp', 'hsdp', 'tp', .*; not 'zero'"),
        ({"replicate": ["0.attn"]}, "the module has no layer '0.attn'; it has '0'"),
        ({"replicate": "0"}, r"replicate is a list of layers: replicate=\['0'\]"),
        ({"precision": "int8"}, "precision is 'bf16', 'fp16' or None; not 'int8'"),
        ({"checkpoint": "often"}, "checkpoint is True, False or 'auto'; not 'often'"),
    ):
        with pytest.raises(MeshUsageError, match=message):
            monarch_nb.parallelize(plain, mesh, **words)
    with pytest.raises(MeshUsageError, match=r"a module that monarch_nb\.parallelize"):
        monarch_nb.explain(plain)
    with pytest.raises(MeshUsageError, match="weight is on a mesh already"):
        monarch_nb.parallelize(monarch_nb.parallelize(plain, mesh), mesh)


def test_hsdp_wants_two_axes(own_mesh: Mesh) -> None:
    with pytest.raises(
        MeshUsageError, match=r"this mesh has one axis of 2 on 1: Mesh\(shape=\(2, 2\)\) has two"
    ):
        monarch_nb.parallelize(nn.Linear(3, 2), own_mesh, "hsdp")


class Dropped(nn.Module):
    """Layers that are left out by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number == 0 or random.random() < 0.5:
                x = layer(x).tanh()
        return x


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp"])
def test_layers_that_are_left_out_by_chance_are_those_of_one_process(mesh: Mesh, strategy: str) -> None:
    plain = Dropped()
    model = monarch_nb.parallelize(plain, mesh, strategy)
    x, losses = torch.randn(8, 4), []
    for each in (model, plain):
        random.seed(3)
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            loss = each(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        losses.append(random.random())
    assert losses[:11] == pytest.approx(losses[11:], abs=1e-9)
    assert "it draws random numbers of Python's or numpy's" in str(monarch_nb.explain(model))
