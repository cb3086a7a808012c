"""A million commands leave nothing behind: here a bounded number, in the long run all."""

from __future__ import annotations

import gc
import os
import tracemalloc
from typing import Any

import pytest
import torch
from processes import PATIENCE_S

import monarch_nb
from monarch_nb._rank.tensor.executor import KEPT_MESSAGES, executors
from monarch_nb._tensor import controller, metadata
from monarch_nb._tensor.slots import FULL
from monarch_nb.distributed import Mesh

PAGE = os.sysconf("SC_PAGE_SIZE")
NUM = int(os.environ.get("MONARCH_NB_COMMANDS", "20000"))
MANY = [1_000_000] if os.environ.get("MONARCH_NB_HOSTILE") == "full" else []


def run(x: monarch_nb.Tensor, num: int) -> monarch_nb.Tensor:
    for n in range(num // 2):
        x = (x + 1.0 / (n + 1)) * 0.5
    return x


def memory_of(mesh: Mesh) -> list[int]:
    """Return how many bytes each rank has in memory that only it uses, after what lies around was freed."""
    return list(mesh.procs.execute(private_bytes).get(PATIENCE_S).values())


def private_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * PAGE


@pytest.mark.parametrize(
    "num", [NUM, *(pytest.param(num, marks=[pytest.mark.soak, pytest.mark.timeout(900)]) for num in MANY)]
)
def test_nothing_grows_with_the_number_of_commands(mesh: Mesh, num: int) -> None:
    engine = mesh.tensor_grid().engine
    with torch.no_grad():
        x = run(monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"]), 70_000 if num > NUM else 1000)
        gc.collect()  # what earlier tests left is given back before, not meanwhile
        engine.synchronize()
        known = (engine.slots.num_live, engine.slots.top, engine.num_misses)
        before = memory_of(mesh)
        tracemalloc.start()
        try:
            x = run(x, num)
            engine.synchronize()
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert engine.slots.num_live == known[0] and engine.num_misses == known[2]
    assert engine.slots.top <= known[1] + 40, "slots are used again"
    places = 0 if num > NUM else 200 * num  # of the last commands, 65,536 at most
    assert grown < places + (1 << 20)
    assert x.full().isfinite().all()
    by_rank = [after - b for after, b in zip(memory_of(mesh), before, strict=True)]
    assert max(by_rank) < 8 << 20, f"ranks have grown by {by_rank} bytes"


@pytest.mark.parametrize(
    "num", [240, *(pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)]) for _ in MANY)]
)
def test_plans_of_many_shapes_are_forgotten(mesh: Mesh, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = mesh.tensor_grid().engine
    most = controller.MAX_PLANS if num > 1000 else 64
    monkeypatch.setattr(controller, "MAX_PLANS", most)
    often = monarch_nb.distribute(torch.ones(3), mesh)
    ours, theirs, on_ranks = [], [], []
    for turn in range(4):
        for n in range(turn * num // 4, (turn + 1) * num // 4):
            x = monarch_nb.distribute(torch.full((1, n + 2), 2), mesh) + 1
            assert n % 50 or (x.sum() == 3 * n + 6 and (often + 1).sum() == 6)
        gc.collect()
        engine.synchronize()
        assert len(engine.definitions) <= most
        ours.append(num_known(engine))
        theirs.append(max(memory_of(mesh)))
        on_ranks.append(mesh.execute(num_plans, engine.name))
    assert max(ours) <= 3 * most, "descriptions that nobody uses are forgotten, too"
    if num > 1000:
        assert max(on_ranks) <= most + 10 * KEPT_MESSAGES, on_ranks
        assert theirs[3] < theirs[1] + (24 << 20), theirs


def num_known(engine: Any) -> int:
    return sum(meta.grid.engine is engine for meta in list(metadata._known.values()))


def num_plans(name: str) -> int:
    return len(executors[name]._plans)


def test_sent_values_are_given_back(mesh: Mesh) -> None:
    """Messages are kept for a while, since other ranks may be behind; their values aren't."""
    big = torch.ones(1 << 20)
    for _ in range(4):
        monarch_nb.distribute(big, mesh)
    mesh.tensor_grid().engine.synchronize()
    before = memory_of(mesh)
    for _ in range(40):
        monarch_nb.distribute(big, mesh)
    mesh.tensor_grid().engine.synchronize()
    by_rank = [after - b for after, b in zip(memory_of(mesh), before, strict=True)]
    assert max(by_rank) < 40 << 20, f"ranks have grown by {by_rank} bytes"


def test_big_values_are_given_back_before_the_next_command(mesh: Mesh) -> None:
    slots = mesh.tensor_grid().engine.slots
    big = monarch_nb.distribute(torch.ones(1 << 19), mesh)
    other = big * 2
    del big
    assert slots.weight >= FULL, "2 MiB are told at once"
    third = other * 2
    assert slots.weight < FULL
    small = monarch_nb.distribute(torch.ones(2), mesh)
    del small
    assert slots.weight < FULL, "eight bytes are told with others"
    assert third[0].item() == 4
