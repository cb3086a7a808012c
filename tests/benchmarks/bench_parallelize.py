"""A training step of `parallelize` beside FSDP2, DDP and TP by hand, on the same ranks and groups, and the
first step: CPU seconds of a rank and wall seconds, interleaved.

Run: `python -m tests.benchmarks.bench_parallelize [rounds [strategy ...]]`. A round measures by hand twice
and ours once, in an order drawn anew. Ratios are medians of the ratios of rounds, with the interval that has
95 of 100 such medians. A ratio says nothing where by hand differs from itself as much.
BENCH_WIDTH=512 makes a model whose step takes several times as long: what is added to a step doesn't grow
with it, and is told most exactly of a small one (BENCH_WIDTH=32). BENCH_STEPS: of one measurement.
BENCH_APART=1: ranks share the last processor, and what drives them has the others, as on a machine with more
processors than ranks: where ranks fill all there are, a step's wall seconds include those of this process.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import time
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import monarch_nb
from monarch_nb._rank.tensor.modules import OnRank
from monarch_nb.distributed import Mesh
from tests.benchmarks.medians import median_text, ratio
from tests.tensor.models import GPT

STEPS = int(os.environ.get("BENCH_STEPS", "4"))
"""Of one measurement: what asking the ranks for their CPU time costs counts as ours."""
ROUNDS = 25
WIDTH = int(os.environ.get("BENCH_WIDTH", "128"))
SIZE = {"vocabulary": 1000, "width": WIDTH, "depth": 3, "length": 64, "heads": 4}
_by_hand: dict[str, tuple[Any, Any]] = {}


def _hand(strategy: str, mesh: Any) -> tuple[Any, Any]:
    made: Any = GPT(**SIZE)
    if strategy == "fsdp":
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


def by_hand(strategy: str, tokens: Any, targets: Any, steps: int) -> tuple[float, float]:
    """On a rank: train; return CPU and wall seconds."""
    shares = strategy == "tp"
    mesh = next(
        x for x in gc.get_objects() if type(x) is OnRank and (x._spec.tensor is not None) == shares
    )._mesh
    began, cpu = time.perf_counter(), time.process_time()
    if strategy not in _by_hand:
        _by_hand[strategy] = _hand(strategy, mesh)
    model, optimizer = _by_hand[strategy]
    place, size = (0, 1) if shares else (mesh.get_local_rank(0), mesh.size())
    rows, wanted = (x.to_local().chunk(size)[place] for x in (tokens, targets))
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(rows), wanted).backward()
        optimizer.step()
    return time.process_time() - cpu, time.perf_counter() - began


def ours(
    mesh: Mesh, model: Any, optimizer: Any, tokens: Any, targets: Any, steps: int
) -> tuple[float, float]:
    """The user's loop; CPU seconds of a rank, and wall seconds."""
    before, began = cpu_of(mesh), time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens), targets).backward()
        optimizer.step()
    after = cpu_of(mesh)
    return after - before, time.perf_counter() - began


def cpu_of(mesh: Mesh) -> float:
    """Return the CPU seconds of all ranks, after what was done to tensors."""
    found = mesh.execute(time.process_time)
    return float(sum(found)) / len(found)


def move_to(processors: set[int]) -> int:
    """Run all threads of this process on some processors only; return the parent process."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), processors)
    return os.getppid()


def move_apart(mesh: Mesh) -> None:
    """Give the ranks the last processor, and this process and the one that starts ranks the others."""
    *others, last = sorted(os.sched_getaffinity(0))
    move_to(set(others))
    host = mesh.execute(move_to, {last})  # one number: all ranks say the same
    for thread in os.listdir(f"/proc/{host}/task"):
        os.sched_setaffinity(int(thread), others)


def measure(mesh: Mesh, strategy: str, rounds: int) -> None:
    """Print a strategy's figures."""
    tokens, targets = torch.randint(1000, (8, 64)), torch.randint(1000, (512,))
    began = time.perf_counter()
    model = monarch_nb.parallelize(GPT(**SIZE), mesh, strategy, sample=tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    made = time.perf_counter() - began
    first = ours(mesh, model, optimizer, tokens, targets, 1)
    of_hand = mesh.execute(by_hand, strategy, tokens, targets, 1)[0]
    print(f"{strategy}: parallelize {made:.2f} s")
    print(f"  first step: {first[1]:.2f} s wall, {first[0]:.2f} s of a rank's CPU")
    print(f"  by hand, made included: {of_hand[1]:.2f} s wall, {of_hand[0]:.2f} s CPU")
    ours(mesh, model, optimizer, tokens, targets, 1)
    mesh.execute(by_hand, strategy, tokens, targets, 1)
    here = 0.0

    def measured(which: str) -> tuple[float, float]:
        nonlocal here
        if which != "ours":
            return mesh.execute(by_hand, strategy, tokens, targets, STEPS)[0]
        before = time.process_time()
        mine = ours(mesh, model, optimizer, tokens, targets, STEPS)
        here += time.process_time() - before
        return mine

    rows = []
    for _ in range(rounds):
        found = {which: measured(which) for which in random.sample(("one", "two", "ours"), 3)}
        rows.append(found)
    print(f"  this process: {here / rounds / STEPS * 1e3:.1f} ms of CPU a step")
    for n, what in enumerate(("rank CPU", "wall")):
        times = {which: [row[which][n] for row in rows] for which in ("one", "two", "ours")}
        one, two, mine = (statistics.median(each) / STEPS * 1e3 for each in times.values())
        print(f"  {what}: by hand {one:.1f} ms a step, again {two:.1f}, ours {mine:.1f}")
        hand = [(a * b) ** 0.5 for a, b in zip(times["one"], times["two"], strict=True)]
        print(
            f"    ours / hand {ratio(times['ours'], hand)}, hand / hand {ratio(times['two'], times['one'])}"
        )
        print(
            f"    ours - hand {added(times['ours'], hand)} ms a step, "
            f"hand - hand {added(times['two'], times['one'])}"
        )


def added(ours: list[float], theirs: list[float]) -> str:
    """Return the median of differences, in milliseconds a step."""
    return median_text([(a - b) / STEPS * 1e3 for a, b in zip(ours, theirs, strict=True)], 2)


if __name__ == "__main__":
    with Mesh((2,), ("data_parallel",)) as ranks:
        if os.environ.get("BENCH_APART") == "1":
            move_apart(ranks)
        for each in sys.argv[2:] or ("fsdp", "ddp", "tp"):
            measure(ranks, each, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
