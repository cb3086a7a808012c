"""torch.inference_mode, in which models are evaluated: there, torch doesn't count changes of tensors, and
doesn't take operations apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import monarch_nb
from monarch_nb.distributed import Mesh

WAYS: dict[str, Callable[[nn.Module, Mesh], Any]] = {
    "module_to_mesh": lambda module, mesh: monarch_nb.module_to_mesh(module, mesh),
    "auto": lambda module, mesh: monarch_nb.parallelize(module, mesh),
    "fsdp": lambda module, mesh: monarch_nb.parallelize(module, mesh, "fsdp"),
}


class Attention(nn.Module):
    """Layers whose operations consist of others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 8, 3, padding=1), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norm(self.conv(x).transpose(1, 2))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last(nn.functional.gelu(x).mean(1))


@pytest.fixture(params=WAYS)
def both(request: pytest.FixtureRequest, mesh: Mesh) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    plain = Attention()
    return plain, WAYS[request.param](plain, mesh)


def test_an_evaluation(both: tuple[nn.Module, Any]) -> None:
    data = TensorDataset(torch.randn(22, 3, 6), torch.randint(5, (22,)))
    found = []
    for model in both:
        model.eval()
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("error")  # such as: every rank does all of it
            total, matrix = 0.0, torch.zeros(5, 5, dtype=torch.long)
            for x, wanted in DataLoader(data, batch_size=8):
                scores = model(x)
                total += nn.functional.cross_entropy(scores, wanted, reduction="sum").item()
                counts = torch.bincount(wanted * 5 + scores.argmax(1), minlength=25).view(5, 5)
                matrix += counts.full() if isinstance(counts, monarch_nb.Tensor) else counts
        found.append((total, matrix))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    assert torch.equal(found[0][1], found[1][1])


class Sentences(nn.Module):
    """Layers that torch evaluates by one operation each."""

    def __init__(self, norm_first: bool, activation: str) -> None:
        super().__init__()
        kinds: Any = {"batch_first": True, "norm_first": norm_first, "activation": activation}
        layer = nn.TransformerEncoderLayer(8, 2, 16, **kinds)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.last = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, is_padding: Any, mask: Any) -> Any:
        x = self.encoder(x, mask, is_padding)
        return self.last(x, x, x, key_padding_mask=is_padding, attn_mask=mask)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("norm_first", "activation"), [(False, "relu"), (True, "gelu")])
def test_layers_of_attention(mesh: Mesh, way: str, context: Any, norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    plain = Sentences(norm_first, activation).eval()
    model = WAYS[way](plain, mesh)
    x, is_padding = torch.randn(8, 5, 8), torch.zeros(8, 5, dtype=torch.bool)
    is_padding[3:, 4:] = True
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    for given in ((None, None), (is_padding, None), (None, mask), (is_padding, mask)):
        with context():
            wanted = plain(x, *given)
            for ours, theirs in zip(model(x, *given), wanted, strict=True):
                kept = is_padding if given[0] is not None else torch.zeros_like(is_padding)
                assert torch.allclose(ours.full()[~kept], theirs[~kept], atol=1e-5)


def test_training_goes_on_after_it(both: tuple[nn.Module, Any]) -> None:
    x = torch.randn(8, 3, 6)
    for model in both:
        with torch.inference_mode():
            model(torch.randn(8, 3, 6))
        model(x).square().mean().backward()
    for ours, theirs in zip(both[1].parameters(), both[0].parameters(), strict=True):
        gradient = ours.grad.full() if isinstance(ours.grad, monarch_nb.Tensor) else ours.grad
        assert torch.allclose(gradient, theirs.grad, atol=1e-5)


def test_a_tensor_made_in_it_that_changes_is_sent_again(mesh: Mesh) -> None:
    with torch.inference_mode():
        ours, plain = monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"]), torch.zeros(4)
        assert (ours + plain).full().tolist() == [1.0] * 4
        plain.add_(2)
        assert (ours + plain).full().tolist() == [3.0] * 4
    assert (ours * plain).full().tolist() == [2.0] * 4


def test_errors_are_those_of_torch(mesh: Mesh) -> None:
    with torch.inference_mode():
        ours = monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"])
        with pytest.raises(RuntimeError, match="reduction dim"):
            nn.functional.linear(ours.view(2, 2), torch.ones(3, 3))
