"""What a module of `parallelize` sends is what DDP and FSDP2 written by hand send: the same collectives, with
the same bytes, in the same order.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import monarch_nb
from monarch_nb._rank.tensor.modules import OnRank
from monarch_nb.distributed import Mesh
from tests.tensor.models import GPT

Traffic = list[tuple[str, int]]


class Collectives(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Traffic = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [x for x in pytree.tree_leaves(args[0]) if isinstance(x, torch.Tensor)]
            self.seen.append((str(func), sum(x.numel() * x.element_size() for x in tensors)))
        return func(*args, **(kwargs or {}))


def both(tokens: torch.Tensor, strategy: str, seed: int) -> tuple[Traffic, Traffic]:
    """On a rank: a step of ours and one by hand; what each sends."""
    ours = next(x for x in gc.get_objects() if type(x) is OnRank and x._recipe.seed == seed)
    mesh = ours._mesh
    place = mesh.get_local_rank(0)
    local = tokens.to_local() if hasattr(tokens, "to_local") else tokens
    rows = local.chunk(mesh.size())[place]
    hand: Any = GPT()
    if strategy == "fsdp":
        for block in hand.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(hand, mesh=mesh)
    else:
        hand = DistributedDataParallel(
            hand, process_group=mesh.get_group(0), broadcast_buffers=False, init_sync=False
        )
    found = []
    for forward in (lambda: ours._call(rows), lambda: hand(rows)):
        for _ in range(2):  # groups and buckets are made
            forward().sum().backward()
        with Collectives() as mode:
            forward().sum().backward()
        found.append(mode.seen)
    return found[0], found[1]


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_collectives_and_bytes_are_those_by_hand(mesh: Mesh, strategy: str) -> None:
    tokens = torch.randint(17, (8, 6))
    seed = 1234 if strategy == "ddp" else 1235
    torch.manual_seed(seed)  # by which the ranks find the module among those of other tests
    model = monarch_nb.parallelize(GPT(), mesh, strategy)
    model(tokens).sum().backward()
    gc.collect()
    ours, hand = mesh.execute(both, tokens, strategy, seed)
    assert ours and ours == hand
