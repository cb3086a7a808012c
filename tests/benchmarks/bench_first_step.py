"""The first step on a mesh that has done nothing yet, beside the same by hand: `python -m
tests.benchmarks.bench_first_step [rounds]`.

Each measurement has a mesh of its own, by turns: what torch does at its first use is done by each rank once,
so a second model on the same mesh would be told nothing about. From a model in this process to the loss of
its first step here, in wall seconds: a GPT as streamed commands beside DTensors by hand, with BENCH_WIDTH
(128); and another one by `parallelize` beside DDP and FSDP2 by hand. Median of the rounds.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import torch
from torch import optim
from torch.nn import functional

import monarch_nb
from monarch_nb.distributed import Mesh
from tests.benchmarks import gpt_by_hand, trained_by_hand
from tests.benchmarks.trained_by_hand import SIZE
from tests.tensor.models import GPT

WIDTH = int(os.environ.get("BENCH_WIDTH", "128"))
ROUNDS = 5
NUM_RANKS = 2
First = Callable[[Mesh], object]
"""Makes a model on a mesh, and trains it for a step; returns when that is done."""


def streamed(mesh: Mesh) -> float:
    """Train with tensors of the mesh."""
    model = monarch_nb.module_to_mesh(gpt_by_hand.GPT(WIDTH), mesh)
    optimizer = optim.SGD(model.parameters(), lr=1e-2)
    inputs, targets = _batch(mesh)
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return float(loss.item())


def by_dtensor(mesh: Mesh) -> float:
    """Train with DTensors, which a function makes on each rank."""
    mesh.execute(gpt_by_hand.by_hand, "one", gpt_by_hand.GPT(WIDTH), *_batch(mesh))
    with mesh.activate():
        gpt_by_hand.train_by_hand("one")
    return float(mesh.execute(gpt_by_hand.loss_of, "one"))


def _batch(mesh: Mesh) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.randint(gpt_by_hand.GPT.VOCABULARY, (8, 64))
    first, second = (
        monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in (batch, batch.roll(-1, 1).flatten())
    )
    return first, second


def parallelized(mesh: Mesh, strategy: str) -> float:
    """Train by `parallelize`."""
    tokens, targets = torch.randint(1000, (8, 64)), torch.randint(1000, (512,))
    model = monarch_nb.parallelize(GPT(**SIZE), mesh, strategy, sample=tokens)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    loss = functional.cross_entropy(model(tokens), targets)
    loss.backward()
    optimizer.step()
    return float(loss.item())


def by_torch(mesh: Mesh, strategy: str) -> None:
    """Train by DDP or FSDP2, on each rank."""
    tokens, targets = torch.randint(1000, (8, 64)), torch.randint(1000, (512,))
    store = f"/tmp/first_step_{uuid.uuid4().hex}"
    mesh.execute(trained_by_hand.prepare_alone, strategy, tokens, targets, store)
    with mesh.activate():
        trained_by_hand.train("one", 1)
    mesh.execute(trained_by_hand.is_done)
    Path(store).unlink(missing_ok=True)


WAYS: dict[str, tuple[First, First]] = {
    "streamed / DTensor": (streamed, by_dtensor),
    "parallelize / DDP": (lambda mesh: parallelized(mesh, "ddp"), lambda mesh: by_torch(mesh, "ddp")),
    "parallelize / FSDP2": (lambda mesh: parallelized(mesh, "fsdp"), lambda mesh: by_torch(mesh, "fsdp")),
}


def first_step(take: First) -> float:
    """Return the seconds of a first step on a mesh of its own, which has loaded what ranks start with."""
    with Mesh((NUM_RANKS,), ("data_parallel",)) as mesh:
        x = monarch_nb.distribute(torch.ones(NUM_RANKS), mesh, ["data_parallel"])
        assert x.sum().item() == NUM_RANKS
        began = time.perf_counter()
        take(mesh)
        return time.perf_counter() - began


def main(rounds: int) -> None:
    """Print the rows."""
    for name, ways in WAYS.items():
        taken: list[list[float]] = [[], []]
        for _ in range(rounds):
            for n in random.sample((0, 1), 2):
                taken[n].append(first_step(ways[n]))
        ours, theirs = map(statistics.median, taken)
        every = "; ".join(", ".join(f"{each:.2f}" for each in sorted(row)) for row in taken)
        print(f"{name}: {ours:.2f} s, {theirs:.2f} s, {ours / theirs:.2f} x  ({every})", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
