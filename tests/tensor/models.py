"""Models of all kinds, with batches and losses: what is trained over a mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.other_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).split(width, -1)
        q, k, v = (t.view(rows, length, self.heads, -1).transpose(1, 2) for t in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.other_norm(x))))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int = 17, width: int = 16, depth: int = 2, length: int = 6, heads: int = 2
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("index", torch.arange(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(self.index)
        for block in self.blocks:
            h = block(h)
        found: torch.Tensor = self.head(self.norm(h))
        return found.flatten(0, 1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embed(x)).flatten(0, 1)
        return found


class Experts(nn.Module):
    """Each row goes to the best two of some experts."""

    def __init__(self, width: int = 6, num: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(width, num)
        self.experts = nn.ModuleList(nn.Linear(width, 3) for _ in range(num))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        values, chosen = weights.topk(2, -1)
        sparse = torch.zeros_like(weights).scatter(-1, chosen, values)
        return torch.stack([sparse[:, n : n + 1] * e(x) for n, e in enumerate(self.experts)]).sum(0)


class Last(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)[0]
        return found


class SparseAttention(nn.Module):
    """Picks tokens of the whole batch: its gate is as long as that."""

    def __init__(self, rows: int, width: int, num_picked: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(rows, 1))
        self.num_picked = num_picked
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = (x * self.gate).sum(-1)
        picked = score.topk(self.num_picked).indices
        found: torch.Tensor = self.out(x) + x[picked].mean(0)
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


class Residual(nn.Module):
    """A block of a ResNet, as people write it: what batch norm gives is changed in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm, self.other_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm(self.first(x)))
        out = self.other_norm(self.second(out))
        out += x
        found: torch.Tensor = self.relu(out)
        return found


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


class Shifted(nn.Module):
    """Guesses each next token from those before, which it shifts by assignments, as models of Hugging Face
    do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        shifted = tokens.new_zeros(tokens.shape)
        shifted[:, 1:] = tokens[:, :-1].clone()
        shifted[:, 0] = 3
        shifted.masked_fill_(shifted == 7, 1)
        found: torch.Tensor = self.out(self.embed(shifted).cumsum(1))
        return found.flatten(0, 1)


def sparse() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), SparseAttention(8, 6, 3), nn.Linear(6, 3))


Batch = tuple[torch.Tensor, torch.Tensor]


def train(model: nn.Module, batches: list[Batch], criterion: Any, make: Any = None) -> list[float]:
    """Train as anybody does; return the losses. `make` makes the optimiser: AdamW by default."""
    optimizer = make(model.parameters()) if make else optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@dataclass(frozen=True)
class Case:
    """A model, its batches and its loss; `whole`: layers that look across the batch."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Any = functional.mse_loss
    whole: tuple[str, ...] = ()


CASES = {
    "mlp": Case(
        lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3)),
        lambda: (torch.randn(8, 6), torch.randn(8, 3)),
    ),
    "gpt": Case(GPT, lambda: (torch.randint(17, (8, 6)), torch.randint(17, (48,))), nn.CrossEntropyLoss()),
    "batch norm": Case(normed, lambda: (torch.randn(8, 2, 4, 4), torch.randn(8, 3)), whole=("1",)),
    "resnet": Case(
        resnet, lambda: (torch.randn(8, 2, 8, 8), torch.randn(8, 3)), whole=("1", "4.norm", "4.other_norm")
    ),
    "assignments": Case(
        Shifted, lambda: (torch.randint(11, (8, 5)), torch.randint(11, (40,))), nn.CrossEntropyLoss()
    ),
    "tied embeddings": Case(
        Tied, lambda: (torch.randint(11, (8, 5)), torch.randint(11, (40,))), nn.CrossEntropyLoss()
    ),
    "experts": Case(Experts, lambda: (torch.randn(8, 6), torch.randn(8, 3))),
    "lstm": Case(
        lambda: Last(nn.LSTM(6, 3, batch_first=True)), lambda: (torch.randn(8, 4, 6), torch.randn(8, 4, 3))
    ),
    "sparse attention": Case(sparse, lambda: (torch.randn(8, 6), torch.randn(8, 3)), whole=("1",)),
}
