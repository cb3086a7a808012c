"""A million commands leave nothing behind: here a bounded number, in the long run all."""

from __future__ import annotations

import gc
import os
import tracemalloc

import pytest
import torch

import monarch_nb
from monarch_nb.distributed import Mesh

NUM = int(os.environ.get("MONARCH_NB_COMMANDS", "20000"))
MANY = [1_000_000] if os.environ.get("MONARCH_NB_HOSTILE") == "full" else []


def run(x: monarch_nb.Tensor, num: int) -> monarch_nb.Tensor:
    for n in range(num // 2):
        x = (x + 1.0 / (n + 1)) * 0.5
    return x


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


def test_big_values_are_given_back_before_the_next_command(mesh: Mesh) -> None:
    slots = mesh.tensor_grid().engine.slots
    big = monarch_nb.distribute(torch.ones(1 << 19), mesh)
    other = big * 2
    del big
    assert slots.has_many_dropped(), "2 MiB are told at once"
    third = other * 2
    assert not slots.has_many_dropped()
    small = monarch_nb.distribute(torch.ones(2), mesh)
    del small
    assert not slots.has_many_dropped(), "eight bytes are told with others"
    assert third[0].item() == 4
