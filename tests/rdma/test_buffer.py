"""RDMABuffer between ranks, and between ranks and this program: on one host and on two host processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy
import pytest
import torch
from memory_actors import Holder
from own_meshes import own_mesh

from monarch_nb.actor import ProcMesh
from monarch_nb.exceptions import ActorError, BufferGone, MeshUsageError, RDMAError
from monarch_nb.rdma import RDMAAction, RDMABuffer, empty, use_path


@pytest.fixture(scope="module")
def pair(procs: ProcMesh) -> Iterator[tuple[Holder, Holder]]:
    """An actor on each of two ranks."""
    actors = procs.spawn("holders", Holder)
    return actors.slice(ranks=0), actors.slice(ranks=1)


def test_a_handle_travels_and_the_bytes_follow(pair: tuple[Holder, Holder]) -> None:
    owner, reader = pair
    values = torch.randn(300, 70)
    buffer = owner.put.call_one("w", values).get()
    assert (buffer.shape, buffer.dtype, buffer.size()) == ((300, 70), "float32", 84_000)
    mine, receipt = reader.read.call_one(buffer).get()
    assert torch.equal(mine, values)
    assert (receipt.op, receipt.path, receipt.num_bytes) == ("read", "shm", 84_000)
    assert torch.equal(buffer.read(), values)
    assert torch.equal(reader.read_and_await.call_one(buffer).get(), values)


def test_what_is_written_is_in_the_owners_memory(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    buffer = owner.put.call_one("w", torch.zeros(8, 4)).get()
    receipt = buffer[2:4].write_from(torch.ones(2, 4)).get()
    assert receipt.op == "write"
    expected = torch.zeros(8, 4)
    expected[2:4] = 1
    assert torch.equal(owner.get.call_one("w").get(), expected)


@pytest.mark.parametrize("path", ["shm", "tcp"])
@pytest.mark.parametrize("mappable", [False, True])
def test_large_ones_by_every_path(pair: tuple[Holder, Holder], path: str, mappable: bool) -> None:
    owner, reader = pair
    values = torch.arange(5 << 20, dtype=torch.int32).view(5, 1024, 1024)
    buffer = owner.put.call_one("large", values, mappable).get()
    mine, receipt = reader.read.call_one(buffer[1:4], path).get()
    assert receipt.path == path
    assert torch.equal(mine, values[1:4])
    buffer.write_from(-values, path=path).get()
    assert torch.equal(owner.get.call_one("large").get(), -values)
    buffer.drop()


def test_strided_on_both_sides(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    values = torch.randn(512, 600, dtype=torch.float64)
    buffer = owner.put_every_second.call_one("s", values).get()
    assert buffer.shape == (512, 300)
    room = torch.zeros(300, 512, dtype=torch.float64)
    buffer.read_into(room.T).get()
    assert torch.equal(room.T, values[:, ::2])
    buffer.write_from(torch.zeros(300, 512, dtype=torch.float64).T).get()
    assert torch.equal(owner.get.call_one("s").get()[:, 1::2], values[:, 1::2])
    assert not owner.get.call_one("s").get()[:, ::2].any()


def test_of_any_kind_and_dtype(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    for value in (
        torch.randn(7, dtype=torch.bfloat16),
        torch.tensor(3),
        torch.tensor([True, False]),
        numpy.arange(6.0).reshape(2, 3),
    ):
        found = owner.put.call_one("any", value).get().read()
        assert type(found) is type(value)
        assert found.dtype == value.dtype
        assert (found == value).all()
    mine = RDMABuffer(bytearray(b"kernel"))
    assert mine.read() == bytearray(b"kernel")
    empty_one = owner.put.call_one("none", torch.empty(0, 3)).get()
    assert empty_one.read().shape == (0, 3)


def test_a_program_has_buffers_too(pair: tuple[Holder, Holder]) -> None:
    _, reader = pair
    mine = torch.randn(1000)
    buffer = RDMABuffer(mine)
    found, receipt = reader.read.call_one(buffer).get()
    assert torch.equal(found, mine)
    assert receipt.path == "shm"
    assert "the program" in buffer.owner
    buffer.drop()


def test_memory_that_can_be_mapped_is_not_copied(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    buffer = owner.put.call_one("m", torch.arange(1 << 20, dtype=torch.float32), True).get()
    private, shared = buffer.map(), buffer[10:20].map(shared=True)
    assert torch.equal(shared, torch.arange(10, 20, dtype=torch.float32))
    owner.set.call_one("m", 12, -1.0).get()
    assert private[12] == shared[2] == -1
    private[13] = -2
    assert owner.get.call_one("m").get()[13] == 13
    shared[4] = -3
    assert owner.get.call_one("m").get()[14] == -3
    with pytest.raises(MeshUsageError, match=r"not allocated by rdma\.empty"):
        owner.put.call_one("n", torch.zeros(3)).get().map()


def test_many_at_once(pair: tuple[Holder, Holder]) -> None:
    owner, reader = pair
    arrays = [numpy.random.default_rng(i).random((i + 1, 100)) for i in range(50)]
    buffers = [owner.put.call_one(f"a{i}", array).get() for i, array in enumerate(arrays)]
    found, receipt = reader.batch.call_one(buffers).get()
    assert all((a == b).all() for a, b in zip(found, arrays, strict=True))
    assert receipt.num_bytes == sum(a.nbytes for a in arrays)
    action = RDMAAction()
    for buffer, array in zip(buffers, arrays, strict=True):
        action.write_remote(buffer, -array)
    assert action.submit().get().op == "write"
    assert (owner.get.call_one("a7").get() == -arrays[7]).all()


def test_a_dropped_buffer_says_so(pair: tuple[Holder, Holder]) -> None:
    owner, reader = pair
    buffer = owner.put.call_one("d", torch.zeros(10)).get()
    owner.drop.call_one("d").get()
    with pytest.raises(BufferGone, match="its owner has dropped it"):
        buffer.read()
    with pytest.raises(BufferGone, match="dropped"):
        buffer.write_from(torch.ones(10), path="tcp").get()
    with pytest.raises(ActorError, match="its owner has dropped it"):
        reader.read.call_one(buffer).get()
    other = owner.put.call_one("d", torch.zeros(10)).get()
    other.drop().get()  # anybody who holds it may
    with pytest.raises(BufferGone):
        other.read()
    other.drop().get()


def test_registered_memory_cannot_be_freed(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    buffer = owner.put.call_one("r", torch.ones(1000)).get()
    assert "not resizable" in owner.resize.call_one("r").get()
    assert buffer.read().sum() == 1000


def test_an_owner_that_died_or_was_started_anew(procs: ProcMesh) -> None:
    mesh = procs.host_mesh.spawn_procs(per_host={"spare": 1})
    flat = mesh.flatten("all") if len(mesh.extent) > 1 else mesh.rename(spare="all")
    first = flat.spawn("doomed", Holder).slice(all=0)
    buffer = first.put.call_one("w", torch.ones(1 << 20)).get()
    assert buffer.read().sum() == 1 << 20
    first.die.broadcast()
    with pytest.raises(Exception, match="SIGKILL"):
        first.get.call_one("w").get()
    for path in ("shm", "tcp"):
        with pytest.raises(RDMAError, match=r"has ended|gone"), use_path(path):
            buffer.read()
    mesh.heal()
    with pytest.raises(BufferGone):
        buffer.read()
    with pytest.raises(BufferGone), use_path("tcp"):
        buffer.read()
    mesh.stop(grace_s=0.0).get(30)


def test_bad_input_is_one_clear_error(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    buffer = owner.put.call_one("b", torch.zeros(10, 4)).get()
    with pytest.raises(
        MeshUsageError,
        match=r"dst has 32 bytes \(2x4 float32\), the buffer has 160 \(10x4 float32\).*buffer\[:2\]",
    ):
        buffer.read_into(torch.zeros(2, 4))
    with pytest.raises(MeshUsageError, match="dst is read-only"):
        buffer.read_into(bytes(160))
    with pytest.raises(MeshUsageError, match=r"the buffer .* is read-only"):
        owner.read_only.call_one().get().write_from(bytes(64))
    with pytest.raises(MeshUsageError, match="timeout=-1: a time-out is a number of seconds above 0"):
        buffer.read_into(torch.zeros(10, 4), timeout=-1)
    with pytest.raises(MeshUsageError, match="data is a int; a buffer is made of a"):
        RDMABuffer(3)
    with pytest.raises(MeshUsageError, match=r"\[10\]: out of range for a dimension of 10"):
        buffer[10]
    with pytest.raises(MeshUsageError, match="3 indices for 2 dimensions"):
        buffer[0, 0, 0]
    with pytest.raises(MeshUsageError, match="no path is called 'pigeon'; there are local, cuda_ipc, shm"):
        buffer.read_into(torch.zeros(10, 4), path="pigeon").get()
    with pytest.raises(
        RDMAError, match=r"no path moves bytes between .*cuda_ipc: the buffer is in host memory"
    ):
        buffer.read_into(torch.zeros(10, 4), path="cuda_ipc").get()
    assert RDMAAction().submit().get().num_bytes == 0
    with pytest.raises(MeshUsageError, match="whole numbers"):
        empty(-1)
    with pytest.raises(MeshUsageError, match="sparse"):
        RDMABuffer(torch.zeros(3, 3).to_sparse())


def test_receipts_say_why(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    buffer = owner.put.call_one("w", torch.zeros(1 << 18)).get()
    assert buffer.backend == "shm"
    receipt = buffer.read_into(torch.zeros(1 << 18)).get()
    assert str(receipt).startswith("read 1 MiB by shm in ")
    assert not receipt.why_not
    assert receipt.gb_per_s > 0


def test_totals_are_in_the_status_of_the_rank(procs: ProcMesh) -> None:
    with own_mesh("moves", {"gpus": 2}) as mesh:
        holders = mesh.spawn("holders", Holder)
        buffer = holders.slice(gpus=0).put.call_one("w", torch.zeros(1 << 20)).get()
        for _ in range(3):
            holders.slice(gpus=1).read.call_one(buffer).get()
        ranks = mesh.status().ranks
        assert not ranks[0].transfers
        (moved,) = ranks[1].transfers
        assert (moved.path, moved.num, moved.read_bytes, moved.written_bytes) == ("shm", 3, 3 << 22, 0)
        assert moved.seconds > 0
        assert "moved by shm: 12" in mesh.status().text()


def test_another_machine_is_reached_by_tcp_and_the_receipt_says_why(
    procs: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = procs.host_mesh.spawn_procs(per_host={"far": 1})
    mesh.set_environment({"MONARCH_NB_RDMA_MACHINE": "elsewhere"}).get()
    flat = mesh.flatten("all") if len(mesh.extent) > 1 else mesh.rename(far="all")
    buffer = flat.spawn("far", Holder).slice(all=0).put.call_one("w", torch.arange(1 << 20)).get()
    room = torch.zeros(1 << 20, dtype=torch.int64)
    receipt = buffer.read_into(room).get()
    assert torch.equal(room, torch.arange(1 << 20))
    if receipt.path == "tcp":  # no RDMA device here
        assert list(receipt.why_not) == ["shm", "verbs"]
        assert receipt.why_not["shm"].endswith("is another machine")
        assert "not by verbs: " in str(receipt)
    else:
        assert receipt.path == "verbs"
    with pytest.raises(MeshUsageError, match=r"can't be mapped: .* is another machine"):
        buffer.map()
    monkeypatch.setenv("MONARCH_NB_RDMA_ENCRYPTED", "1")
    room.zero_()
    receipt = buffer.read_into(room).get()
    assert torch.equal(room, torch.arange(1 << 20))
    assert receipt.path == "message"
    assert receipt.why_not["tcp"] == "it isn't encrypted, and MONARCH_NB_RDMA_ENCRYPTED is set"
    mesh.stop(grace_s=0.0).get(30)


def test_a_foreign_handle_says_whose_it_is(pair: tuple[Holder, Holder]) -> None:
    owner, _ = pair
    handle = owner.put.call_one("f", torch.zeros(10)).get()._handle
    elsewhere = replace(
        handle.owner, machine="another", process=1, addresses=(("another mesh", 7),), host="gpu-7"
    )
    foreign = RDMABuffer._of(replace(handle, owner=elsewhere))
    with pytest.raises(
        RDMAError, match=r"on gpu-7\) can't be asked from here: it's in no mesh that the program"
    ):
        foreign.read()
    stale = RDMABuffer._of(replace(handle, owner=replace(handle.owner, machine="another", process=1)))
    with pytest.raises(BufferGone, match="was started anew, or belongs to another mesh"):
        stale.read()
