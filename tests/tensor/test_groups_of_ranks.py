"""Process groups of tensors, of which one rank is lost while they are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from processes import PATIENCE_S
from waiting import wait_until

from monarch_nb._rank import rendezvous
from monarch_nb._rank.tensor import meshes
from monarch_nb._rank.tensor.meshes import Meshes
from monarch_nb._rank.tensor.protocol import GridDefinition

GRID = GridDefinition(7, (2,), ("rows",), (0, 1))


class Halted(Exception):
    pass


@pytest.fixture
def halt() -> threading.Event:
    return threading.Event()


@pytest.fixture
def of_rank(halt: threading.Event) -> Iterator[Callable[[int], Meshes]]:
    """Makes the meshes of one of two ranks, both in this process."""

    def check() -> None:
        if halt.is_set():
            raise Halted

    made: list[Meshes] = []

    def of(rank: int) -> Meshes:
        made.append(Meshes(f"rank{rank}", rank, check))
        made[-1].connect(0, address)
        return made[-1]

    address = rendezvous.start("a test")
    yield of
    for each in made:
        each.clear()


def begin(rank: Meshes, pool: ThreadPoolExecutor) -> Future[None]:
    """Have a rank define its grid; the other one says that it's there, and never comes."""
    rank.store.set(f"rank0.0.{GRID.number}/1", "here")
    num = rank.store.num_keys()
    found = pool.submit(rank.define, GRID)
    wait_until(lambda: found.done() or rank.store.num_keys() > num + 1, "it has told its own address")
    return found


def test_a_rank_that_waits_for_a_lost_ones_address_can_be_stopped(
    of_rank: Callable[[int], Meshes], halt: threading.Event
) -> None:
    with ThreadPoolExecutor(1) as pool:
        defined = begin(of_rank(0), pool)
        halt.set()
        with pytest.raises(Halted):
            defined.result(PATIENCE_S)


def test_a_rank_does_not_wait_for_long_either(
    of_rank: Callable[[int], Meshes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meshes, "CONNECT_S", 0.5)
    with ThreadPoolExecutor(1) as pool, pytest.raises(TimeoutError, match="no rank has set"):
        begin(of_rank(0), pool).result(PATIENCE_S)


def test_operations_have_more_time_than_the_start(of_rank: Callable[[int], Meshes]) -> None:
    rank = of_rank(0)
    rank.define(GridDefinition(8, (1,), ("rows",), (0,)))
    group = rank.by_number[8].get_group(0)
    backend: Any = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout.total_seconds() == meshes.TIMEOUT_S > meshes.CONNECT_S
