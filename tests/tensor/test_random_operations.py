"""Thousands of random operations with ranks that are killed among them: values are those of plain tensors, or
are said to be lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from random_walk import Walk

from monarch_nb.distributed import Mesh

FULL = os.environ.get("MONARCH_NB_HOSTILE") == "full"
SEEDS = [int(each) for each in os.environ.get("MONARCH_NB_SEEDS", "1,2,3").split(",")]


@pytest.fixture
def four() -> Iterator[Mesh]:
    with Mesh(shape=(2, 2), mesh_dim_names=("rows", "columns")) as found:
        yield found


def test_some_hundred_operations_and_kills(four: Mesh) -> None:
    walk = Walk(four, seed=20)
    walk.run(120, kill_every=40)
    check(walk, 120)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(not FULL, reason="in the long form only: MONARCH_NB_HOSTILE=full")
@pytest.mark.parametrize("seed", SEEDS)
def test_ten_thousand_operations_and_kills(four: Mesh, seed: int) -> None:
    walk = Walk(four, seed)
    walk.run(10_000, kill_every=400)
    check(walk, 10_000)


def check(walk: Walk, num: int) -> None:
    """Say that the walk has tried what it's for."""
    assert walk.counts["kills"] and walk.counts["lost"] and walk.counts["survived"]
    assert walk.counts["refused"] < num // 4
