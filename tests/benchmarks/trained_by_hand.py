"""The models of `bench_parallelize` that are made by hand, on a rank.

A module of its own: a function of a script's main module gets globals of its own with each call.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import time
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import monarch_nb
from monarch_nb._rank.tensor.modules import OnRank
from tests.tensor.models import GPT

WIDTH = int(os.environ.get("BENCH_WIDTH", "128"))
SIZE = {"vocabulary": 1000, "width": WIDTH, "depth": 3, "length": 64, "heads": 4}
_made: dict[str, tuple[Any, Any]] = {}
_given: dict[str, Any] = {}
Note = tuple[str, float, float]
"""What begins, the CPU seconds of this rank so far, and the time."""
_notes: list[Note] = []
Seconds = tuple[float, float]
"""Of a rank's CPU, and of the wall."""


def _hand(strategy: str, mesh: Any) -> tuple[Any, Any]:
    made: Any = GPT(**SIZE)
    if strategy in ("fsdp", "hsdp"):
        for block in made.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(made, mesh=mesh)
    elif strategy == "tp":
        plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
        parallelize_module(made, mesh["model"], plan, src_data_rank=None)
    else:
        made = DistributedDataParallel(  # this model's buffers never change; ours doesn't send them either
            made, process_group=mesh.get_group(0), init_sync=False, forward_sync_buffers=False
        )
    return made, torch.optim.AdamW(made.parameters(), lr=1e-3)


def _nothing(*_: Any) -> torch.Tensor:
    return torch.zeros(())


def train_here(which: str, steps: int) -> torch.Tensor:
    """Train a model made by hand; make it where there's none of this name."""
    if which not in _made:
        _made[which] = _hand(*_given["groups"])
    model, optimizer = _made[which]
    rows, wanted = _given["data"]
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(rows), wanted).backward()
        optimizer.step()
    return _nothing()


def note_here(which: str) -> torch.Tensor:
    """Note the time at which something begins."""
    _notes.append((which, time.process_time(), time.perf_counter()))
    return _nothing()


train = monarch_nb.remote(train_here, propagate=_nothing)
note = monarch_nb.remote(note_here, propagate=_nothing)


def read_notes() -> list[Note]:
    """Return the notes, and forget them."""
    found = list(_notes)
    _notes.clear()
    return found


def between(of_ranks: list[list[Note]]) -> list[tuple[str, Seconds]]:
    """Return what was done between each two notes: CPU seconds of a rank, the mean of all, and the first
    rank's wall seconds.
    """
    at_once = zip(*of_ranks, strict=True)
    return [(began[0][0], _seconds(began, ended)) for began, ended in itertools.pairwise(at_once)]


def _seconds(began: Any, ended: Any) -> Seconds:
    cpu = statistics.mean(after[1] - before[1] for before, after in zip(began, ended, strict=True))
    return cpu, ended[0][2] - began[0][2]


def prepare(strategy: str, tokens: Any, targets: Any) -> None:
    """Use the process groups of the model of `parallelize`, and this rank's part of the data."""
    shares = strategy == "tp"
    made = (x for x in gc.get_objects() if type(x) is OnRank)
    mesh = next(x._mesh for x in made if (x._spec.tensor is not None) == shares)
    place, size = (0, 1) if shares else (mesh.get_rank(), mesh.size())  # a mesh of all ranks, in order
    _given["groups"] = strategy, mesh
    _given["data"] = [x.to_local().chunk(size)[place] for x in (tokens, targets)]


def forget() -> None:
    """Free the models made by hand."""
    _made.clear()
    gc.collect()
