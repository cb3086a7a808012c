"""What a module of `parallelize` sends is what DDP and FSDP2 written by hand send: the same collectives, with
the same bytes, in the same order.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import monarch_nb
from monarch_nb.distributed import Mesh
from tests.tensor.models import GPT
from tests.tensor.on_ranks import modules_of

Traffic = list[tuple[str, int]]


class Collectives(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Traffic = []
        self.kernels: dict[str, int] = {}
        """How often each operation on a rank's own tensors is done, but for those that move nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:  # what it does on its parts is seen
            return NotImplemented
        if func.namespace == "aten" and not func.is_view:
            self.kernels[str(func)] = self.kernels.get(str(func), 0) + 1
        if func.namespace in ("c10d", "_c10d_functional"):
            tensors = [x for x in pytree.tree_leaves(args[0]) if isinstance(x, torch.Tensor)]
            self.seen.append((str(func), sum(x.numel() * x.element_size() for x in tensors)))
        return func(*args, **(kwargs or {}))


def both(tokens: torch.Tensor, strategy: str, seed: int) -> tuple[Traffic, Traffic]:
    """On a rank: a step of ours and one by hand; what each sends."""
    ours = modules_of(seed)[0]
    mesh = ours._mesh
    place = mesh.get_rank()
    local = tokens.to_local() if hasattr(tokens, "to_local") else tokens
    rows = local.chunk(mesh.size())[place]
    hand: Any = GPT()
    if strategy != "ddp":
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


def hand_trained(tokens: torch.Tensor, start: dict[str, torch.Tensor], seed: int) -> list[torch.Tensor]:
    """On a rank: ten steps of FSDP2's HSDP by hand; return this rank's parts of the parameters."""
    mesh = modules_of(seed)[0]._mesh
    model: Any = GPT()
    model.load_state_dict(start)
    for each in (*model.blocks, model):
        fully_shard(each, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        model(tokens.chunk(mesh.size())[mesh.get_rank()]).square().mean().backward()
        optimizer.step()
    return [each.full_tensor().clone() for each in model.parameters()]


def test_ten_steps_of_hsdp_are_those_by_hand(mesh: Mesh) -> None:
    tokens = torch.randint(17, (8, 6))
    torch.manual_seed(1237)
    plain = GPT()
    model = monarch_nb.parallelize(plain, mesh, "hsdp")
    assert [p.is_replicate() for p in next(model.parameters()).placements] == [True, False]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()
    found = [each.full() for each in model.parameters()]  # the ranks have the module now
    made = mesh.procs.execute(hand_trained, tokens, plain.state_dict(), 1237).get(120)
    for by_hand in made.values():
        for (name, start), ours, theirs in zip(plain.named_parameters(), found, by_hand, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-6), name
            assert not torch.equal(theirs, start), name


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_collectives_and_bytes_are_those_by_hand(mesh: Mesh, strategy: str) -> None:
    tokens = torch.randint(17, (8, 6))
    seed = {"ddp": 1234, "fsdp": 1235, "hsdp": 1236}[strategy]
    torch.manual_seed(seed)  # by which the ranks find the module among those of other tests
    model = monarch_nb.parallelize(GPT(), mesh, strategy)
    model(tokens).sum().backward()
    gc.collect()
    ours, hand = mesh.execute(both, tokens, strategy, seed)
    assert ours and ours == hand


def both_shared(tokens: torch.Tensor, strategy: str, seed: int) -> tuple[Any, Any]:
    """On a rank: a step of ours and one by hand; what each sends, and the kernels."""
    ours = modules_of(seed)[0]
    data, line = ours._mesh["data"], ours._mesh["model"]
    rows = tokens.chunk(data.size())[data.get_local_rank(0)]
    plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    hand: Any = parallelize_module(GPT(), line, plan, src_data_rank=None)
    if strategy == "fsdp+tp":
        for each in (*hand.blocks, hand):
            fully_shard(each, mesh=data)
    elif strategy == "ddp+tp":
        _pre_dp_module_transform(hand)
        group = data.get_group(0)
        hand = DistributedDataParallel(
            hand, process_group=group, broadcast_buffers=False, init_sync=False, gradient_as_bucket_view=True
        )
    found = []
    for forward in (lambda: ours._called((rows,), {}), lambda: hand(rows)):
        for _ in range(2):
            forward().sum().backward()
        with Collectives() as mode:
            forward().sum().backward()
        found.append((mode.seen, mode.kernels))
    return found[0], found[1]


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers")
@pytest.mark.parametrize("strategy", ["ddp+tp", "fsdp+tp", "tp"])
def test_layers_that_ranks_share_send_what_they_do_by_hand(mesh: Mesh, own_mesh: Mesh, strategy: str) -> None:
    tokens = torch.randint(17, (8, 6))
    seed = {"ddp+tp": 1238, "fsdp+tp": 1239, "tp": 1240}[strategy]
    torch.manual_seed(seed)
    at = own_mesh if strategy == "tp" else mesh
    model = monarch_nb.parallelize(GPT(), at, strategy, sample=tokens)
    model(tokens).sum().backward()
    for each in model.parameters():  # so the backward has ended on all ranks: `execute` doesn't wait for it
        each.grad.full()
    gc.collect()
    made = at.procs.execute(both_shared, tokens, strategy, seed).get(120)
    for (ours, our_kernels), (hand, kernels) in made.values():
        sums = [size for name, size in ours if "all_reduce" in name or "allreduce" in name]
        assert ours == hand and len(sums) >= 4, "two layers' results, and the gradients of their inputs"
        if strategy == "ddp+tp":  # DDP by hand divides gradients in its buckets; ours are sums
            assert kernels.pop("aten.div_.Scalar") > 0
        assert kernels and our_kernels == kernels
