"""Big buffers: shared memory on one machine, lent by the data plane to others; copy-on-write; nothing
leaks.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_nb.actor.handle import placement_of

torch = pytest.importorskip("torch")

from sample_actors import Tensors, Where  # noqa: E402

from monarch_nb._client import session  # noqa: E402
from monarch_nb.actor import ProcMesh  # noqa: E402

T = 60
BIG = 4 << 20


def until(condition: Callable[[], bool], procs: ProcMesh) -> None:
    """Make round trips until `condition`: releases travel with other messages. Bounded, and no clock."""
    where = procs.spawn("probe", Where)
    for _ in range(2000):
        if condition():
            return
        where.pid.call().get(T)
    raise AssertionError("never came true")


def segments(pid: int) -> int:
    """Return how many of our segments a process holds open."""
    return sum(
        "memfd:monarch_nb " in os.readlink(entry)
        for entry in Path(f"/proc/{pid}/fd").iterdir()
        if entry.is_symlink()
    )


def test_in_place_changes_are_seen_by_nobody_else(procs: ProcMesh) -> None:
    tensor = torch.zeros(BIG, dtype=torch.uint8)
    tensor[-1] = 77
    tensors = procs.spawn("tensors", Tensors)
    for _ in range(3):
        found = tensors.change_in_place.call(tensor).get(T)
        assert list(found.values()) == [(77, rank) for rank in range(4)]
    assert int(tensor[-1]) == 77


def test_buffers_come_back(procs: ProcMesh) -> None:
    values = procs.spawn("tensors", Tensors).make.call(BIG).get(T)
    assert [int(v[-1]) for v in values.values()] == [0, 1, 2, 3]
    assert all(v.numel() == BIG for v in values.values())
    first = values[0]
    first[0] = 9  # what arrives is ours to change


def test_what_is_kept_stays_while_others_are_sent(procs: ProcMesh) -> None:
    tensors = procs.spawn("tensors", Tensors)
    for value in (1, 2, 3):
        if value == 1:
            tensors.keep.call(torch.full((BIG,), value, dtype=torch.uint8)).get(T)
        else:
            tensors.change_in_place.call(torch.full((BIG,), value, dtype=torch.uint8)).get(T)
    assert tensors.last_of_kept.call().get(T).reduce("equal") == 1
    tensors.drop.call().get(T)


def test_segments_are_reused_and_freed(procs: ProcMesh) -> None:
    transport = session.current().transport
    tensors = procs.spawn("tensors", Tensors)
    tensor = torch.zeros(BIG, dtype=torch.uint8)
    transport.pool.trim(0.0)  # what other tests have left warm
    for _ in range(20):
        tensors.change_in_place.call(tensor).get(T)
    until(lambda: transport.pool.num_used == 0, procs)
    assert transport.pool.free_bytes <= 8 * BIG
    tensors.keep.call(tensor).get(T)
    if any(
        p >> 32 == transport.host for p in placement_of(procs).procs
    ):  # else they have copies of their own
        assert transport.pool.num_used == 1
    tensors.drop.call().get(T)
    until(lambda: transport.pool.num_used == 0, procs)
    transport.pool.trim(0.0)
    assert segments(os.getpid()) == 0


def test_long_bytes_are_kept_as_long_as_somebody_has_them(procs: ProcMesh) -> None:
    transport = session.current().transport
    tensors = procs.spawn("tensors", Tensors)
    where = procs.spawn("where", Where)
    tensors.keep.call(b"\1" * BIG).get(T)
    for value in (2, 3):
        found = where.echo.call(bytes([value]) * BIG).get(T)
        assert [(type(v), v.count(value)) for v in found.values()] == [(bytes, BIG)] * 4
    assert tensors.last_of_kept.call().get(T).reduce("equal") == 1
    tensors.drop.call().get(T)
    until(lambda: transport.pool.num_used == 0, procs)


def test_a_killed_rank_leaks_none(doomed: ProcMesh) -> None:
    transport = session.current().transport
    tensors = doomed.spawn("tensors", Tensors)
    tensors.keep.call(torch.zeros(BIG, dtype=torch.uint8)).get(T)
    pids = list(doomed.execute(os.getpid).get(T).values())
    for pid in pids:
        os.kill(pid, 9)
    for index in range(4):
        assert tensors.flatten("r").slice(r=index).drop.call_one().exception(T) is not None
    gc.collect()
    reachable = [p for p in placement_of(doomed).procs if p >> 32 == transport.host]
    if reachable:  # on other hosts, their host process holds the segment and frees it
        assert transport.pool.num_used == 0


def test_long_payloads_travel_like_buffers(procs: ProcMesh) -> None:
    where = procs.spawn("where", Where)
    text = "x" * (3 << 20)
    assert where.slice(hosts=1, gpus=1).echo.call_one(text).get(T) == text
    numbers = list(range(400_000))
    assert where.slice(hosts=0, gpus=0).echo.call_one(numbers).get(T) == numbers


def test_one_storage_stays_one(procs: ProcMesh) -> None:
    base = torch.arange(1 << 20)
    where = procs.spawn("where", Where).slice(hosts=1, gpus=0)
    whole, part = where.echo.call_one((base, base[10:20])).get(T)
    whole[10] = -1
    assert int(part[0]) == -1


@pytest.mark.parametrize("megabytes", [2, 6])
def test_small_ones_travel_and_large_ones_are_lent(procs: ProcMesh, megabytes: int) -> None:
    """Either way the receivers have the bytes, and nothing stays lent: whether they fetched it or died
    before.
    """
    from monarch_nb.rdma.remote_arguments import remote_arguments

    transport = session.current().transport
    tensors = procs.spawn("tensors", Tensors)
    tensor = torch.zeros(megabytes << 20, dtype=torch.uint8)
    tensor[-1] = 5
    found = tensors.change_in_place.call(tensor).get(T)
    assert list(found.values()) == [(5, rank) for rank in range(4)]
    until(lambda: len(remote_arguments()) == 0 and transport.pool.num_used == 0, procs)


def test_nothing_stays_lent_to_the_dead(doomed: ProcMesh) -> None:
    from monarch_nb.rdma.remote_arguments import remote_arguments

    tensors = doomed.spawn("tensors", Tensors)
    pids = list(doomed.execute(os.getpid).get(T).values())
    tensors.sleep.broadcast(60.0)
    call = tensors.change_in_place.call(
        torch.zeros(8 << 20, dtype=torch.uint8)
    )  # waits behind the sleep, unopened
    for pid in pids:
        os.kill(pid, 9)
    assert call.exception(T) is not None
    tick = threading.Event()
    while len(remote_arguments()):  # it's given back in a thread of its own
        tick.wait(0.01)


def test_lent_memory_is_freed(procs: ProcMesh) -> None:
    tensors = procs.spawn("tensors", Tensors)
    value = torch.zeros(8 << 20, dtype=torch.uint8)
    tensors.change_in_place.call(value).get(T)
    found = tensors.make.call(8 << 20).get(T)
    assert all(v.numel() == 8 << 20 for v in found.values())
    del found
    until(lambda: not any(procs.execute(lent_segments).get(T).values()), procs)
    assert lent_segments() == 0


def lent_segments() -> int:
    """Return how many of a process' descriptors are memory that was lent."""
    return sum(
        "monarch_nb-buffer" in os.readlink(e) for e in Path("/proc/self/fd").iterdir() if e.is_symlink()
    )
