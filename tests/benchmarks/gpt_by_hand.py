"""A training step as one writes it for DTensors, to be run by each rank on process groups that exist."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional

import monarch_nb
from tests.benchmarks.notes import nothing

made: dict[str, dict[str, Any]] = {}
"""On a rank, by name: the model, its optimiser, the batch, and the last loss."""


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.other_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows of the same shape."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, -1)
        q, k, v = (t.view(rows, length, self.heads, -1).transpose(1, 2) for t in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.other_norm(x))))


class GPT(nn.Module):
    """A small GPT."""

    VOCABULARY = 256
    LENGTH = 64

    def __init__(self, width: int = 128, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(self.VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, self.VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, one row for each token."""
        h = self.tokens(x)
        for block in self.blocks:
            h = block(h)
        found: torch.Tensor = self.head(self.norm(h))
        return found.flatten(0, 1)


def by_hand(which: str, plain: nn.Module, inputs: Any, targets: Any) -> None:
    """Make a model on a rank, with a name: parameters whole on every rank, the batch as it is."""
    torch.set_num_threads(1)
    mesh = inputs.device_mesh
    for layer in plain.modules():
        for name, each in list(layer._parameters.items()):
            if each is not None:
                whole = DTensor.from_local(each.detach().clone(), mesh, [Replicate()], run_check=False)
                layer._parameters[name] = nn.Parameter(whole)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2)
    made[which] = {"model": plain, "batch": (inputs, targets), "optimizer": optimizer}


@monarch_nb.remote(propagate=nothing)
def train_by_hand(which: str) -> torch.Tensor:
    """Take a step on a rank."""
    state = made[which]
    inputs, targets = state["batch"]
    state["optimizer"].zero_grad()
    loss = functional.cross_entropy(state["model"](inputs), targets)
    loss.backward()
    state["optimizer"].step()
    state["loss"] = loss.detach()
    return nothing()


def loss_of(which: str) -> float:
    """Return the last loss of a model."""
    return float(made[which]["loss"].full_tensor().item())
