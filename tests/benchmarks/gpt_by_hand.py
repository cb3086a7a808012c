"""A training step as one writes it for DTensors, to be run by each rank on process groups that exist."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional

state: dict[str, Any] = {}
"""On a rank: the model, its optimiser, the batch, and losses."""


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


def by_hand(plain: nn.Module, inputs: Any, targets: Any) -> None:
    """Set a rank up: parameters whole on every rank, the batch as it is."""
    torch.set_num_threads(1)
    mesh = inputs.device_mesh
    for layer in plain.modules():
        for name, each in list(layer._parameters.items()):
            if each is not None:
                whole = DTensor.from_local(each.detach().clone(), mesh, [Replicate()], run_check=False)
                layer._parameters[name] = nn.Parameter(whole)
    state.update(model=plain, inputs=inputs, targets=targets, losses=[])
    state["optimizer"] = torch.optim.SGD(plain.parameters(), lr=1e-2)


def trained_by_hand(num: int) -> None:
    """Take some steps on a rank."""
    for _ in range(num):
        state["optimizer"].zero_grad()
        loss = functional.cross_entropy(state["model"](state["inputs"]), state["targets"])
        loss.backward()
        state["optimizer"].step()
    state["losses"].append(loss.full_tensor().item())


def losses_of() -> list[float]:
    """Return the losses so far."""
    found: list[float] = state["losses"]
    return found


def cpu_of_rank() -> float:
    """Return the CPU time of the rank's process."""
    return time.process_time()
