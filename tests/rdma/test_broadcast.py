"""One buffer to many: who feeds whom, and that all have it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from faults import kill
from memory_actors import Holder

import monarch_nb.actor
from monarch_nb.actor import ProcMesh, this_host
from monarch_nb.actor.handle import placement_of
from monarch_nb.exceptions import (
    ActorError,
    BufferGone,
    MeshError,
    MeshUsageError,
    RankTimeout,
    TransferTimeout,
)
from monarch_nb.rdma import RDMABuffer, Receipt, empty, use_path
from monarch_nb.rdma.broadcast import leader as leader_module
from monarch_nb.rdma.broadcast.buffers import Spread
from monarch_nb.rdma.broadcast.questions import Lead
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.link import ask_later

LEAVES = """
import os, sys, torch
from pathlib import Path
from monarch_nb.actor import shutdown_context, this_host
from monarch_nb.rdma import RDMABuffer
mesh = this_host().spawn_procs({"gpus": 2})
mesh.execute(os.getpid).get(60)
busy = mesh.slice(gpus=1).execute(Path(sys.argv[1]).read_bytes)
gate = open(sys.argv[1], "wb")  # now it reads
broadcast = RDMABuffer(torch.zeros(1000)).broadcast_into(mesh, "weights")
print(broadcast.done(), flush=True)
shutdown_context()
print("left")
"""


@pytest.fixture(scope="module")
def pair(procs: ProcMesh) -> Iterator[Holder]:
    return procs.spawn("receivers", Holder)


def test_into_buffers(pair: Holder) -> None:
    source = RDMABuffer(torch.randn(100_000))
    targets = pair.put.call("t", torch.zeros(100_000)).get()
    receipt = source.broadcast_into(targets).get()
    assert len(receipt.receipts) == 2
    assert "400,000" not in str(receipt)
    assert str(receipt).startswith("390.6 KiB to 2 in ")
    for found in pair.get.call("t").get().values():
        assert torch.equal(found, source.read())
    source.drop()
    with pytest.raises(BufferGone):
        source.broadcast_into(targets).get()


@pytest.fixture(params=["this program", "the first rank"])
def leader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program on the mesh's machine does it by itself; for one elsewhere the first rank does."""
    if request.param == "the first rank":
        monkeypatch.setattr(leader_module, "_can_lead_here", lambda _source, _mesh: False)


@pytest.mark.usefixtures("leader")
@pytest.mark.parametrize("mappable", [False, True])
def test_into_the_namespace_of_a_mesh(procs: ProcMesh, mappable: bool) -> None:
    values = torch.randn(1 << 19)
    if mappable:
        room = empty(1 << 19)
        room.copy_(values)
        source = RDMABuffer(room)
    else:
        source = RDMABuffer(values)
    receipt = source.broadcast_into(procs, "weights").get()
    assert receipt.num_receivers == 2
    assert ("none, it's mapped" in str(receipt)) == (not receipt.receipts)
    source.drop()
    sums = procs.execute(_sum_of_weights).get().values()
    assert list(sums) == [values.view(torch.int32).sum().item()] * 2


@pytest.mark.usefixtures("leader")
def test_one_that_fails_leaves_the_variable_as_it_was(procs: ProcMesh) -> None:
    kept = torch.randn(1000)
    RDMABuffer(kept).broadcast_into(procs, "weights").get()
    gone = RDMABuffer(torch.zeros(1000))
    gone.drop()
    with pytest.raises(BufferGone):
        gone.broadcast_into(procs, "weights").get()
    assert list(procs.execute(_sum_of_weights).get().values()) == [kept.view(torch.int32).sum().item()] * 2


@pytest.mark.usefixtures("leader")
def test_a_failure_does_not_wait_for_ranks_that_are_busy(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    mesh = this_host().spawn_procs({"gpus": 2})
    busy = mesh.slice(gpus=1).execute((tmp_path / "gate").read_bytes)
    gone = RDMABuffer(torch.zeros(1000))
    gone.drop()
    with pytest.raises(BufferGone):
        gone.broadcast_into(mesh, "weights").get(60)
    assert not busy.done()
    (tmp_path / "gate").write_bytes(b"now")
    assert busy.get(60).item() == b"now"
    RDMABuffer(torch.ones(1000)).broadcast_into(mesh, "weights").get(60)
    assert len(set(mesh.execute(_sum_of_weights).get().values())) == 1
    mesh.stop().get(60)


@pytest.mark.usefixtures("leader")
def test_a_rank_that_is_busy_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    mesh = this_host().spawn_procs({"gpus": 2})
    busy = mesh.slice(gpus=1).execute((tmp_path / "gate").read_bytes)
    with open(tmp_path / "gate", "wb") as gate:  # now it reads
        broadcast = RDMABuffer(torch.ones(1000)).broadcast_into(mesh, "weights")
        with pytest.raises(RankTimeout, match=r"within 0.2 s; it goes on"):
            broadcast.get(0.2)
        gate.write(b"now")
    assert broadcast.get(60).num_receivers == 2
    assert busy.get(60).item() == b"now"
    assert len(set(mesh.execute(_sum_of_weights).get().values())) == 1
    mesh.stop().get(60)


@pytest.mark.usefixtures("leader")
def test_a_rank_that_stays_busy_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    mesh = this_host().spawn_procs({"gpus": 3})
    RDMABuffer(torch.zeros(1000)).broadcast_into(mesh, "weights").get(60)
    busy = mesh.slice(gpus=1).execute((tmp_path / "gate").read_bytes)
    with open(tmp_path / "gate", "wb") as gate:  # now it reads
        with pytest.raises(
            TransferTimeout, match=r"rank 1 did not receive it within 0.5 s; .* on rank 1, 'weights' is unch"
        ):
            RDMABuffer(torch.ones(1000)).broadcast_into(mesh, "weights", timeout=0.5).get(60)
        gate.write(b"now")
    busy.get(60)
    old, new = (torch.full((1000,), value).view(torch.int32).sum().item() for value in (0.0, 1.0))
    assert list(mesh.execute(_sum_of_weights).get(60).values()) == [new, old, new]
    RDMABuffer(torch.ones(1000)).broadcast_into(mesh, "weights").get(60)
    assert list(mesh.execute(_sum_of_weights).get(60).values()) == [new, new, new]
    mesh.stop().get(60)


@pytest.mark.usefixtures("leader")
def test_one_that_nobody_asks_for_happens_all_the_same(procs: ProcMesh) -> None:
    done = threading.Event()
    broadcast = RDMABuffer(torch.full((1000,), 2.0)).broadcast_into(procs, "weights")
    broadcast.add_done_callback(lambda _future: done.set())
    assert done.wait(60) and broadcast.done()
    expected = torch.full((1000,), 2.0).view(torch.int32).sum().item()
    assert list(procs.execute(_sum_of_weights).get().values()) == [expected] * 2


@pytest.mark.usefixtures("leader")
def test_one_after_the_other_each_rank_sees_the_last(procs: ProcMesh) -> None:
    """The answer comes before the last of them has been let through the barrier: what they're asked next
    comes after that.
    """
    for turn in range(50):
        RDMABuffer(torch.full((300_000,), turn, dtype=torch.int32)).broadcast_into(procs, "weights").get(60)
        assert list(procs.execute(_sum_of_weights).get(60).values()) == [turn * 300_000] * 2


def test_a_program_that_leaves_waits_for_no_busy_rank(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    program = subprocess.run(
        [sys.executable, "-c", LEAVES, str(tmp_path / "gate")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert program.stdout.split() == ["False", "left"]


def test_one_that_goes_by_a_forced_path_is_left_to_the_first_rank(procs: ProcMesh) -> None:
    with use_path("tcp"):
        receipt = RDMABuffer(torch.full((1000,), 3.0)).broadcast_into(procs, "weights").get(60)
    assert receipt.num_receivers == 2
    expected = torch.full((1000,), 3.0).view(torch.int32).sum().item()
    assert list(procs.execute(_sum_of_weights).get(60).values()) == [expected] * 2


@pytest.mark.parametrize("mappable", [False, True])
def test_a_cell_of_one_rank_can_do_it(procs: ProcMesh, mappable: bool) -> None:
    """The thread that asks for it is the one that would have to take it."""
    assert procs.slice(ranks=1).execute(_broadcast_from_here, procs, 5.0, mappable).get(60).item() == 2
    expected = torch.full((1000,), 5.0).view(torch.int32).sum().item()
    assert list(procs.execute(_sum_of_weights).get(60).values()) == [expected] * 2
    assert (
        procs.slice(ranks=0).execute(_broadcast_from_here, procs.slice(ranks=0), 6.0, mappable).get(60).item()
        == 1
    )
    expected_6 = torch.full((1000,), 6.0).view(torch.int32).sum().item()
    assert list(procs.execute(_sum_of_weights).get(60).values()) == [expected_6, expected]


def _broadcast_from_here(mesh: ProcMesh, value: float, mappable: bool) -> int:
    room = (empty if mappable else torch.empty)(1000)
    source = RDMABuffer(room.fill_(value))
    receipt = source.broadcast_into(mesh, "weights").get(30)
    source.drop()
    return receipt.num_receivers


def test_an_actor_can_do_it(procs: ProcMesh, pair: Holder) -> None:
    pair.slice(ranks=1).broadcast.call_one(torch.full((1000,), 4.0), procs, "weights").get(60)
    expected = torch.full((1000,), 4.0).view(torch.int32).sum().item()
    assert list(procs.execute(_sum_of_weights).get(60).values()) == [expected] * 2


def test_a_leader_that_does_not_answer_is_named() -> None:
    mesh = this_host().spawn_procs({"gpus": 1})
    assert mesh.execute(abs, -1).get(60).item() == 1
    (pid,) = mesh.execute(os.getpid).get(60).values()
    os.kill(pid, signal.SIGSTOP)
    try:
        asked = ask_later(
            mesh._transport,
            placement_of(mesh).procs[0],
            Lead(RDMABuffer(bytearray(1)), mesh, "weights", 0.1),
            0.1,
            "rank 0",
            lambda found, _seconds: found,
        )
        with pytest.raises(TransferTimeout, match=r"rank 0 didn't answer the data plane within 0.1 s"):
            asked.get(60)
        given_up = threading.Event()
        asked = ask_later(
            mesh._transport,
            placement_of(mesh).procs[0],
            Lead(RDMABuffer(bytearray(1)), mesh, "weights", 0.1),
            0.1,
            "rank 0",
            lambda found, _seconds: found,
        )
        asked.add_done_callback(lambda _future: given_up.set())
        assert given_up.wait(60)
        assert isinstance(asked.exception(), TransferTimeout)
    finally:
        os.kill(pid, signal.SIGCONT)
    mesh.stop().get(60)


@pytest.mark.usefixtures("leader")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_lost_is_named(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", lambda _failure: None)
    mesh = this_host().spawn_procs({"gpus": 3})
    kill(mesh, rank)
    with pytest.raises(MeshError, match=f"rank {rank}"):
        RDMABuffer(torch.zeros(1000)).broadcast_into(mesh, "weights").get(60)
    mesh.heal()
    RDMABuffer(torch.ones(1000)).broadcast_into(mesh, "weights").get(60)
    assert len(set(mesh.execute(_sum_of_weights).get().values())) == 1
    mesh.stop().get(60)


def _sum_of_weights() -> int:
    """Of the bits: a sum of floats depends on the number of threads."""
    import __main__

    return int(__main__.weights.view(torch.int32).sum().item())


def test_bad_input(procs: ProcMesh, pair: Holder) -> None:
    source = RDMABuffer(torch.zeros(8))
    small = pair.put.call("small", torch.zeros(4)).get()
    with pytest.raises(MeshUsageError, match="has 16 bytes, the source 32: they must be equal"):
        source.broadcast_into(small)
    with pytest.raises(MeshUsageError, match="name is the variable that the ranks get, not None"):
        source.broadcast_into(procs)
    with pytest.raises(MeshUsageError, match="a name goes with a mesh"):
        source.broadcast_into(small, "w")
    for to, name in ((procs, "w"), (small, None)):
        with pytest.raises(MeshUsageError, match="timeout=-1: "):
            source.broadcast_into(to, name, timeout=-1)
    with pytest.raises(MeshUsageError, match="expected RDMABuffers to copy into, not a Tensor"):
        source.broadcast_into([torch.zeros(8)])


def test_one_failure_ends_it(procs: ProcMesh, pair: Holder) -> None:
    source = RDMABuffer(torch.zeros(8))
    targets = list(pair.put.call("gone", torch.zeros(8)).get().values())
    targets[1].drop().get()
    with pytest.raises((BufferGone, ActorError)):
        source.broadcast_into(targets).get()


def _machines(num: int, ranks: int) -> tuple[Handle, list[Handle]]:
    """Handles as if of `num` machines with so many ranks each; the source is the first machine's."""
    one = RDMABuffer(bytearray(8))._handle
    handles = [
        replace(one, key=m * 100 + r + 1, owner=replace(one.owner, machine=f"m{m}", process=m * 100 + r))
        for m in range(num)
        for r in range(ranks)
    ]
    return handles[0], handles[1:]


def test_machines_have_it_after_log_n_steps() -> None:
    """All steps of a round are held until no further can begin: so rounds can be counted."""
    source, targets = _machines(16, 1)
    rounds: list[int] = []
    gate = threading.Condition()
    waiting: list[threading.Event] = []

    def copy(there: Handle, to: Handle) -> Receipt:
        go = threading.Event()
        with gate:
            waiting.append(go)
            gate.notify()
        go.wait()
        return Receipt("read", "test", 8, 0.0)

    spread = Spread(source, targets, copy, width=2)
    thread = threading.Thread(target=spread.run)
    thread.start()
    have = 1
    while have < 16:
        expected = min(have, 16 - have)
        with gate:
            gate.wait_for(lambda n=expected: len(waiting) == n)
            batch, waiting[:] = list(waiting), []
        rounds.append(len(batch))
        for go in batch:
            go.set()
        have += len(batch)
    thread.join()
    assert rounds == [1, 2, 4, 8]
    assert spread.depth == 4
    assert len(spread.receipts) == 15


def test_each_machine_is_fed_once() -> None:
    source, targets = _machines(4, 8)
    between: list[tuple[str, str]] = []
    lock = threading.Lock()
    busy: dict[int, int] = {}

    def copy(there: Handle, to: Handle) -> Receipt:
        with lock:
            busy[there.key] = busy.get(there.key, 0) + 1
            assert busy[there.key] <= 3  # two readers of its machine, and one other machine
            if there.owner.machine != to.owner.machine:
                between.append((there.owner.machine, to.owner.machine))
        with lock:
            busy[there.key] -= 1
        return Receipt("read", "test", 8, 0.0)

    spread = Spread(source, targets, copy, width=2)
    spread.run()
    assert len(spread.receipts) == 31
    assert sorted(to for _, to in between) == ["m1", "m2", "m3"]
