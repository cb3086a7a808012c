"""Process groups of tensors, of which one rank is lost while they are made."""

from __future__ import annotations

import subprocess
import sys
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
from monarch_nb._rank.tensor.meshes import Meshes, group_name
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


DIES = """
import os, sys
from datetime import timedelta
from torch import distributed as dist
from monarch_nb._rank.tensor.meshes import Abortable

class Dies(Abortable):
    def set(self, key, value):
        super().set(key, value)
        os._exit(0)

host, port, prefix, name, rank = sys.argv[1:]
store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
store.set(f"{prefix}/{rank}", "here")
dies = Dies(store, lambda: None)
groups = dist.PrefixStore(f"{name}/", dies)
dist.ProcessGroupGloo(dist.PrefixStore("cpu/", groups), int(rank), 2, timeout=timedelta(seconds=60))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_dies_when_its_address_is_known_holds_up_nobody_for_long(
    of_rank: Callable[[int], Meshes], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meshes, "CONNECT_S", 2.0)
    own, prefix, name = of_rank(rank), f"rank{rank}.0.{GRID.number}", group_name(f"rank{rank}.0", GRID.ranks)
    other = [sys.executable, "-c", DIES, own.store.host, str(own.store.port), prefix, name, str(1 - rank)]
    subprocess.run(other, check=True, timeout=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError):
        pool.submit(own.define, GRID).result(PATIENCE_S)


def test_operations_have_more_time_than_the_start(of_rank: Callable[[int], Meshes]) -> None:
    rank = of_rank(0)
    rank.define(GridDefinition(8, (1,), ("rows",), (0,)))
    group = rank.by_number[8].get_group(0)
    backend: Any = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout.total_seconds() == meshes.TIMEOUT_S > meshes.CONNECT_S


def test_grids_of_the_same_ranks_share_their_groups(
    of_rank: Callable[[int], Meshes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank had a group, with a thread that wakes a hundred times a second, for each axis of each grid."""
    made: list[int] = []
    gloo = meshes._gloo
    monkeypatch.setattr(meshes, "_gloo", lambda *args: made.append(args[-1]) or gloo(*args))
    rank = of_rank(0)
    for number, shape in enumerate([(1,), (1, 1), (1, 1, 1)]):
        rank.define(GridDefinition(number, shape, ("a", "b", "c")[: len(shape)], (0,)))
    grids = [rank.by_number[number] for number in range(3)]
    assert len({id(grid.get_group(axis)) for grid in grids for axis in range(grid.ndim)}) == len(made) == 1
    assert grids[1]["b"].get_group(0) is grids[2].turned(("c", "a", "b")).get_group(0)


def test_ranks_in_another_order_or_number_have_their_own_group() -> None:
    assert len({group_name("x.0", ranks) for ranks in [(0, 1), (1, 0), (0,), (0, 11), (0, 1, 1)]}) == 5
    assert len(group_name("x.0", range(100_000))) < 40
