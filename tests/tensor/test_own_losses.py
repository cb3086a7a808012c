"""Modules that compute their loss themselves, as Hugging Face's do: it's the loss of one process, also where
ranks have rows that don't count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import RemoteException

ROWS, LENGTH, CLASSES = 8, 3, 5


@pytest.fixture(autouse=True)
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


class Head(nn.Module):
    """A layer with a loss."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.out = nn.Linear(6, CLASSES)
        self.register_buffer("weight", torch.tensor([0.5, 2.0, 1.0, 3.0, 0.0]))
        self._loss = loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None) -> Any:
        scores = self.out(x)
        return scores, None if labels is None else self._loss(scores, labels, self.weight)


class Model(nn.Module):
    """A model that returns its loss beside its scores if it's given labels."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = Head(loss)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        for each in self.blocks:
            x = each(x).tanh()
        scores, loss = self.head(x, labels)
        return {"scores": scores, **({} if loss is None else {"loss": loss})}


def tokens(scores: torch.Tensor, labels: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def columns(scores: torch.Tensor, labels: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
    return functional.nll_loss(scores.log_softmax(-1).transpose(1, 2), labels)


def weighted(scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), weight, label_smoothing=0.1)


def layer(scores: torch.Tensor, labels: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
    labels = torch.where(labels < 0, 2, labels)
    return 3 * nn.CrossEntropyLoss(ignore_index=2)(scores.flatten(0, 1), labels.flatten()) + scores.mean()


def summed(scores: torch.Tensor, labels: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / ROWS


def shares(scores: torch.Tensor, labels: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
    wanted = functional.one_hot(labels.clamp(min=0), CLASSES).to(scores.dtype)
    return functional.cross_entropy(scores.transpose(1, 2), wanted.transpose(1, 2))


LOSSES = (tokens, columns, weighted, layer, summed, shares)


def batch(padding: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, labels = torch.randn(ROWS, LENGTH, 6), torch.randint(CLASSES, (ROWS, LENGTH))
    if padding == "uneven":
        labels[5:, 1:] = -100
    if padding == "whole ranks":
        labels[2:] = -100
    return x, labels


@pytest.mark.parametrize("padding", ["none", "uneven", "whole ranks"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp", "tp"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda each: each.__name__)
def test_steps_are_those_of_one_process(mesh: Mesh, loss: Any, strategy: str, padding: str) -> None:
    plain = Model(loss)
    words = {"tp_plan": {"blocks.0": "colwise", "blocks.1": "rowwise"}} if strategy == "tp" else {}
    model = monarch_nb.parallelize(plain, mesh, strategy, **words)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
    for _ in range(3):
        x, labels = batch(padding)
        found, wanted = model(x, labels), plain(x, labels)
        assert found["loss"].item() == pytest.approx(wanted["loss"].item(), abs=1e-12)
        assert torch.allclose(found["scores"].full(), wanted["scores"])
        for optimizer, each in zip(optimizers, (found, wanted), strict=True):
            optimizer.zero_grad()
            each["loss"].backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.full(), theirs)
    assert ("rows that count are added up" in str(monarch_nb.explain(model))) == (
        loss not in (summed, shares)
    )


@pytest.mark.parametrize("words", [{"checkpoint": True}, {"precision": "bf16"}, {"compile": True}], ids=str)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ways_to_run(mesh: Mesh, strategy: str, words: dict[str, Any]) -> None:
    torch.set_default_dtype(torch.float32)
    plain = Model(tokens)
    model = monarch_nb.parallelize(plain, mesh, strategy, **words)
    x, labels = batch("uneven")
    x = x.float()
    found, wanted = model(x, labels)["loss"], plain(x, labels)["loss"]
    found.backward()
    wanted.backward()
    tolerance = 0.05 if "precision" in words else 1e-5
    assert found.item() == pytest.approx(wanted.item(), abs=tolerance)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad.full(), theirs.grad, atol=tolerance)


def test_labels_may_come_later(mesh: Mesh) -> None:
    plain = Model(tokens)
    x, labels = batch("uneven")
    model = monarch_nb.parallelize(plain, mesh, "ddp", sample=x)
    assert torch.allclose(model(x)["scores"].full(), plain(x)["scores"])
    with torch.no_grad():
        assert model(x, labels)["loss"].item() == pytest.approx(plain(x, labels)["loss"].item())
    assert torch.allclose(model(x)["scores"].full(), plain(x)["scores"])


def test_nothing_counts(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(Model(tokens), mesh, "ddp")
    x, labels = batch("none")
    assert model(x, torch.full_like(labels, -100))["loss"].isnan().item(), "as in one process"


def test_a_wrong_label_is_told_as_ever(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(Model(tokens), mesh, "ddp")
    x, labels = batch("none")
    labels[:] = CLASSES
    with pytest.raises(RemoteException, match="out of bounds"):
        model(x, labels)["loss"].item()
    x, labels = batch("none")
    assert model(x, labels)["loss"].isfinite().item()


def own_loss_beside(_x: torch.Tensor) -> float:
    """On a rank: a loss of the user's own, in the process in which a module has counted rows."""
    found: list[float] = []

    def one() -> None:
        found.append(functional.cross_entropy(torch.zeros(2, 4), torch.tensor([1, 1])).item())

    one()
    thread = threading.Thread(target=one)
    thread.start()
    thread.join()
    assert found[0] == found[1]
    return found[0]


def test_other_losses_stay_as_they_are(mesh: Mesh) -> None:
    model = monarch_nb.parallelize(Model(tokens), mesh, "ddp")
    x, labels = batch("uneven")
    model(x, labels)["loss"].backward()
    found = mesh.execute(own_loss_beside, monarch_nb.distribute(x, mesh, []))
    assert found == pytest.approx(torch.tensor(4.0).log().item())
