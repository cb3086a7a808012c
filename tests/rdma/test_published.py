"""Whole models from one mesh to another: sharded one way there and another way here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from memory_actors import Model

from monarch_nb.actor import Actor, ActorMesh, HostMesh, ProcMesh, current_rank, endpoint
from monarch_nb.exceptions import ActorError, BufferGone, MeshUsageError
from monarch_nb.rdma import Published, Receipt, load_into, publish, use_path


def whole(name: str) -> Any:
    """What everybody agrees that a tensor of that name has."""
    shape = {"w": (12, 10), "b": (7,), "scale": ()}[name]
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) + len(name)


class Sharded(Actor):
    """Has DTensors over a device mesh of its own."""

    def __init__(self, sizes: tuple[int, ...], port: int, fill: bool) -> None:
        import torch.distributed as dist
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

        world = torch.Size(sizes).numel()
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=current_rank().rank, world_size=world
        )
        names = ("a", "b")[: len(sizes)]
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        ways: dict[str, list[Any]] = {
            "w": [Shard(0), Shard(1)][: len(sizes)] if fill else [Shard(1), Replicate()][: len(sizes)],
            "b": [Shard(0), Replicate()][: len(sizes)],
            "scale": [Replicate()] * len(sizes),
        }
        make = whole if fill else lambda name: torch.zeros_like(whole(name))
        self.state = {
            "model": {n: distribute_tensor(make(n), mesh, p) for n, p in ways.items()},
            "step": 5 if fill else 0,
        }

    @endpoint
    def publish(self) -> Published:
        return publish(self.state)

    @endpoint
    def load(self, source: Any) -> Receipt:
        return load_into(self.state, source)

    @endpoint
    def full(self) -> tuple[dict[str, Any], int]:
        return {n: t.full_tensor() for n, t in self.state["model"].items()}, self.state["step"]

    @endpoint
    def scale(self, by: float) -> None:
        for tensor in self.state["model"].values():
            tensor.to_local().mul_(by)


@pytest.fixture(scope="module")
def four(host_mesh: HostMesh) -> Iterator[ProcMesh]:
    mesh = host_mesh.spawn_procs(per_host={"gpus": 4 if host_mesh.extent.nelements == 1 else 2})
    yield mesh.flatten("ranks") if len(mesh.extent) > 1 else mesh.rename(gpus="ranks")
    mesh.stop().get(30)


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _spawn(mesh: ProcMesh, name: str, sizes: tuple[int, ...], *, fill: bool) -> ActorMesh[Sharded]:
    return mesh.spawn(name, Sharded, sizes, _free_port(), fill)


@pytest.fixture(scope="module")
def trainer(four: ProcMesh) -> ActorMesh[Sharded]:
    return _spawn(four, "trainer", (2, 2), fill=True)


def test_a_missing_part_is_named(trainer: ActorMesh[Sharded]) -> None:
    parts = list(trainer.publish.call().get().values())
    with pytest.raises(MeshUsageError, match=r"model.w: the part from \(.*\), .*, was published by no rank"):
        load_into({"model": {"w": torch.zeros(12, 10)}}, parts[:2])


def test_from_a_grid_of_shards_to_other_shards(trainer: ActorMesh[Sharded], procs: ProcMesh) -> None:
    generator = _spawn(procs, "generator", (2,), fill=False)
    published = trainer.publish.call().get()
    joined = Published.join(published.values())
    assert joined.tensors["model.w"].shape == (12, 10)
    receipts = generator.load.call(published).get()
    assert {r.path for r in receipts.values()} == {"shm"}
    for values, step in generator.full.call().get().values():
        assert step == 5
        assert all(torch.equal(values[name], whole(name)) for name in values)
    # Trained further in place: the same handles again.
    trainer.scale.call(2.0).get()
    generator.load.call(joined).get()
    values, _ = next(iter(generator.full.call().get().values()))
    assert torch.equal(values["w"], 2 * whole("w"))
    joined.drop()
    with pytest.raises(ActorError, match="its owner has dropped it"):
        generator.load.call(joined).get()


def test_a_model_of_plain_tensors(procs: ProcMesh) -> None:
    teacher = procs.slice(ranks=0).spawn("teacher", Model, 1)
    student = procs.slice(ranks=1).spawn("student", Model, 2)
    published = teacher.publish.call_one().get()
    receipt = student.load.call_one(published).get()
    assert receipt.op == "read"
    expected, found = (a.weights.call_one().get() for a in (teacher, student))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    mine = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).bfloat16()
    load_into(mine.state_dict(), published)
    assert torch.equal(mine[0].weight, expected["0.weight"].bfloat16())
    assert repr(published) == "<Published 7 tensors, 17,672 bytes, of 1 rank>"


def test_what_does_not_fit_is_named(procs: ProcMesh) -> None:
    published = procs.slice(ranks=0).spawn("giver", Model, 1).publish.call_one().get()
    with pytest.raises(MeshUsageError, match=r"0.weight is 3x3 here and was published as 64x64"):
        load_into({"0.weight": torch.zeros(3, 3)}, published)
    with pytest.raises(
        MeshUsageError, match=r"head was not published; there are 0.weight, 0.bias, .* and 3 more"
    ):
        load_into({"head": torch.zeros(3)}, published)
    assert load_into({"head": torch.zeros(3)}, published, strict=False).num_bytes == 0
    with pytest.raises(MeshUsageError, match="wants a state dict with tensors"):
        publish({"step": 3})
    with pytest.raises(MeshUsageError, match="expected what publish"):
        load_into({"a": torch.zeros(1)}, [3])
    published.drop()
    with pytest.raises(BufferGone):
        load_into({"0.weight": torch.zeros(64, 64)}, published)


def test_shards_by_tcp(trainer: ActorMesh[Sharded]) -> None:
    published = trainer.publish.call().get()
    mine = {"model": {"w": torch.zeros(12, 10), "b": torch.zeros(7)}}
    with use_path("tcp"):
        receipt = load_into(mine, published)
    assert receipt.path == "tcp"
    expected, _ = next(iter(trainer.full.call().get().values()))
    assert torch.equal(mine["model"]["w"], expected["w"])
    assert torch.equal(mine["model"]["b"], expected["b"])
