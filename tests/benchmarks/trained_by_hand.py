"""The models of `bench_parallelize` that are made by hand, on a rank.

A module of its own: a function of a script's main module gets globals of its own with each call.
"""

from __future__ import annotations

import gc
import math
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import monarch_nb
from monarch_nb._rank.tensor.modules import OnRank
from monarch_nb.actor import current_rank, current_size
from tests.benchmarks.notes import nothing
from tests.tensor.models import GPT

WIDTH = int(os.environ.get("BENCH_WIDTH", "128"))
SIZE = {"vocabulary": 1000, "width": WIDTH, "depth": 3, "length": 64, "heads": 4}
_made: dict[str, tuple[Any, Any]] = {}
_given: dict[str, Any] = {}


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


@monarch_nb.remote(propagate=nothing)
def train(which: str, steps: int) -> torch.Tensor:
    """Train a model made by hand; make it where there's none of this name."""
    if which not in _made:
        _made[which] = _hand(*_given["groups"])
    model, optimizer = _made[which]
    rows, wanted = _given["data"]
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(rows), wanted).backward()
        optimizer.step()
    return nothing()


def prepare(strategy: str, tokens: Any, targets: Any) -> None:
    """Use the process groups of the model of `parallelize`, and this rank's part of the data."""
    shares = strategy == "tp"
    made = (x for x in gc.get_objects() if type(x) is OnRank)
    mesh = next(x._mesh for x in made if (x._spec.tensor is not None) == shares)
    place, size = (0, 1) if shares else (mesh.get_rank(), mesh.size())  # a mesh of all ranks, in order
    _given["groups"] = strategy, mesh
    _given["data"] = [x.to_local().chunk(size)[place] for x in (tokens, targets)]


def prepare_alone(strategy: str, tokens: Any, targets: Any, store: str) -> None:
    """Use process groups of one's own, and this rank's part of the data.

    Args:
        store: a file for the rendezvous.
    """
    rank = current_rank().rank
    size = math.prod(current_size().values())
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("data",))
    _given["groups"] = strategy, mesh
    _given["data"] = [x.to_local().chunk(size)[rank] for x in (tokens, targets)]


def is_done() -> bool:
    """Answer once all that was asked for before is done."""
    return True


def forget() -> None:
    """Free the models made by hand."""
    _made.clear()
    gc.collect()
