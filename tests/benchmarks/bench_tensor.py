"""Tensors of a mesh, beside torch's own: `python tests/benchmarks/bench_tensor.py`. All rows in one run, in
turns, on one machine.

Prints, as CPU time of this process, the least of some rounds: an operation that was done before, on tensors
of a mesh and on plain ones of four numbers, which is what Python and torch's dispatch cost; a training step
of a small network; words and commands that a step sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

import monarch_nb
from monarch_nb.distributed import Mesh

NUM_RANKS = 2
NUM_ROUNDS = 15
NUM_OPERATIONS = 300
NUM_STEPS = 10


def cpu_s(do: Callable[[], object]) -> float:
    """Return the CPU time of this thread that something takes."""
    began = time.thread_time()
    do()
    return time.thread_time() - began


def row(what: str, ours: list[float], floor: list[float], num: int) -> None:
    """Print the least of both per operation, and their ratio."""
    mine, theirs = min(ours) / num * 1e6, min(floor) / num * 1e6
    print(f"{what:<46} {mine:9.1f} us   plain torch {theirs:9.1f} us   {mine / theirs:6.1f} x")


def chain(step: Callable[[Any], Any], start: Any) -> Callable[[], None]:
    """Return what does an operation many times."""

    def do() -> None:
        x = start
        for _ in range(NUM_OPERATIONS):
            x = step(x)

    return do


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "x + x": lambda x: x + x,
    "x.mul_(0.5)": lambda x: x.mul_(0.5),
    "x @ x": lambda x: x @ x,
}


def operations(mesh: Mesh) -> None:
    """Print rows of single operations."""
    for name, step in OPERATIONS.items():
        with torch.no_grad():
            plain = torch.eye(4)
            laid_out = monarch_nb.distribute(plain, mesh)
            ours, floor = chain(step, laid_out), chain(step, plain)
            pairs = []
            for _ in range(NUM_ROUNDS):
                pairs.append((cpu_s(ours), cpu_s(floor)))
                laid_out.engine.synchronize()
        row(name, [p[0] for p in pairs[1:]], [p[1] for p in pairs[1:]], NUM_OPERATIONS)


def steps_of(model: nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    """Return some training steps."""
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)

    def do() -> None:
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch), batch).backward()
            optimizer.step()

    return do


def training(mesh: Mesh) -> None:
    """Print the row of a training step."""
    plain = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16))
    model = monarch_nb.module_to_mesh(plain, mesh)
    batch = torch.randn(8, 16)
    ours, floor = steps_of(model, batch), steps_of(plain, batch)
    engine = next(model.parameters()).engine
    ours()
    engine.synchronize()
    before, bytes_before = engine.stream.count, engine.stream.num_bytes
    pairs = []
    for _ in range(NUM_ROUNDS):
        pairs.append((cpu_s(ours), cpu_s(floor)))
        engine.synchronize()
    num = NUM_ROUNDS * NUM_STEPS
    row("a step of an MLP with AdamW", [p[0] for p in pairs], [p[1] for p in pairs], NUM_STEPS)
    print(
        f"  {(engine.stream.count - before) / num:.0f} commands, "
        f"{(engine.stream.num_bytes - bytes_before) / num:.0f} bytes a step"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Mesh((NUM_RANKS,), ("data_parallel",)) as benchmarked:
        operations(benchmarked)
        training(benchmarked)
