"""What must hold on a machine with GPUs. Plain functions: pytest runs them (marked `gpu`), and `make gpu`,
which needs no pytest.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_actors import GpuHolder, GpuTrainer
from gpu_rig import MIB, PATIENCE_S, Rig, check, wait_until

from monarch_nb.exceptions import BufferGone, MeshError
from monarch_nb.spmd import setup_torch_elastic_env

T = PATIENCE_S


# --- computing


def compute(device: str) -> dict[str, Any]:
    """Multiply small whole numbers, which float32 does exactly; say where."""
    a = (torch.arange(256 * 256) % 7).float().view(256, 256)
    found = a.to(device) @ a.to(device)
    at_all = device == "cuda"
    properties = torch.cuda.get_device_properties(torch.cuda.current_device()) if at_all else None
    return {
        "equal": torch.equal(found.cpu(), a @ a),
        "uuid": str(properties.uuid) if properties is not None else str(os.getpid()),
        "name": properties.name if properties is not None else "no GPU",
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


@check("ranks compute on GPUs, each on its own where there are several")
def ranks_have_gpus(rig: Rig) -> str:
    rows = list(rig.mesh.execute(compute, rig.device).get(T).values())
    assert all(row["equal"] for row in rows), rows
    if rig.num_gpus > 1:
        assert len({row["uuid"] for row in rows}) == len(rows), rows
    return ", ".join(dict.fromkeys(row["name"] for row in rows))


@check("a tensor of a GPU is an argument and an answer")
def tensors_in_calls(rig: Rig) -> None:
    holders: Any = rig.mesh.spawn("echo", GpuHolder, rig.device)
    x = torch.arange(1000.0, device=rig.device, requires_grad=True)
    big = torch.arange(2 * MIB, device=rig.device)  # beside the message
    for sent in (x, big):
        for answer in holders.twice.call({"x": sent, "n": 3}).get(T).values():
            assert answer["n"] == 3
            assert answer["x"].device.type == rig.device
            assert torch.equal(answer["x"], sent.detach() * 2)


# --- buffers


def _two_holders(rig: Rig, name: str) -> tuple[Any, Any]:
    holders: Any = rig.mesh.spawn(name, GpuHolder, rig.device)
    return holders.slice(gpus=0), holders.slice(gpus=1)


@check("a rank reads and writes another's GPU memory by CUDA IPC, into GPU and host memory")
def buffers_by_cuda_ipc(rig: Rig) -> None:
    owner, reader = _two_holders(rig, "ipc")
    for device in dict.fromkeys((rig.device, "cpu")):
        values = torch.randn(1000, 300)
        buffer = owner.put.call_one("w", values, rig.device).get(T)
        found, receipt = reader.read_to.call_one(buffer, device).get(T)
        assert torch.equal(found, values)
        assert receipt.path == rig.near_path, receipt
        written = reader.write_from.call_one(buffer[10:20], -values[10:20], device).get(T)
        assert written.path == rig.near_path, written
        values[10:20] *= -1
        assert torch.equal(owner.content.call_one("w").get(T), values)


@check("a strided part in the middle of an allocation arrives as it is")
def parts_of_allocations(rig: Rig) -> None:
    owner, reader = _two_holders(rig, "parts")
    values = torch.arange(60.0).reshape(6, 10)
    buffer = owner.put_part.call_one("p", values).get(T)
    found, receipt = reader.read_to.call_one(buffer, rig.device).get(T)
    assert torch.equal(found, values[:, ::2])
    assert receipt.path == rig.near_path, receipt


@check("GPU memory goes through the host by tcp and by messages")
def buffers_through_the_host(rig: Rig) -> None:
    owner, reader = _two_holders(rig, "through")
    for path in ("tcp", "message"):
        for device in dict.fromkeys((rig.device, "cpu")):
            values = torch.randn(3 << 20)
            buffer = owner.put.call_one("t", values, rig.device).get(T)
            found, receipt = reader.read_to.call_one(buffer, device, path).get(T)
            assert torch.equal(found, values)
            assert receipt.path == path, receipt
            reader.write_from.call_one(buffer, -values, device, path).get(T)
            assert torch.equal(owner.content.call_one("t").get(T), -values)


@check("host memory is read into a GPU by shared memory")
def host_memory_into_a_gpu(rig: Rig) -> None:
    owner, reader = _two_holders(rig, "host")
    values = torch.randn(1 << 20)
    buffer = owner.put.call_one("h", values, "cpu").get(T)
    found, receipt = reader.read_to.call_one(buffer, rig.device).get(T)
    assert torch.equal(found, values)
    assert receipt.path == "shm", receipt


@check("a buffer that its owner has dropped says so")
def dropped_buffers(rig: Rig) -> None:
    owner, reader = _two_holders(rig, "drops")
    buffer = owner.put.call_one("d", torch.zeros(1000), rig.device).get(T)
    reader.read_to.call_one(buffer, rig.device).get(T)
    owner.drop.call_one("d").get(T)
    output = _error_of(lambda: reader.read_to.call_one(buffer, rig.device).get(T))
    assert "its owner has dropped it" in str(output), output
    assert isinstance(getattr(output, "exception", None), BufferGone), output


def _error_of(function: Callable[[], Any]) -> MeshError:
    """Return what a call raises."""
    try:
        function()
    except MeshError as error:
        return error
    raise AssertionError("a dropped buffer was read")


kept: dict[int, Any] = {}
"""In the other process: what was given, by key."""


def _give(plane: Any, device: str, nbytes: int) -> Any:
    from monarch_nb.rdma.memory import memory_of

    tensor = _pattern(4, nbytes).to(device)
    handle = plane.register(memory_of(tensor))
    kept[handle.key] = tensor
    return handle


def _given(plane: Any, handle: Any) -> Any:
    return kept[handle.key].cpu()


def _pattern(seed: int, nbytes: int) -> Any:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@check("GPU memory of another machine is read and written by tcp, byte for byte")
def memory_over_tcp(rig: Rig) -> None:
    """Two processes that take each other for other machines."""
    from two_planes import TwoPlanes

    from monarch_nb.rdma.memory import memory_of
    from monarch_nb.rdma.path import Job

    with TwoPlanes({"MONARCH_NB_RDMA_MACHINE": "elsewhere"}) as two:
        for nbytes in (1000, 32 * MIB + 5):
            handle = two.far(_give, rig.device, nbytes)
            room = torch.zeros(nbytes, dtype=torch.uint8, device=rig.device)
            two.plane.submit([Job("read", handle, memory_of(room))], "tcp").get(T)
            assert torch.equal(room.cpu(), _pattern(4, nbytes))
            changed = _pattern(5, nbytes - 3)
            two.plane.submit([Job("write", handle.part(slice(3, nbytes)), memory_of(changed))], "tcp").get(T)
            assert torch.equal(two.far(_given, handle)[3:], changed)
            two.far(lambda plane, handle: plane.drop(handle), handle)
            output = _error_of(
                lambda there=handle, to=room: two.plane.submit(
                    [Job("read", there, memory_of(to))], "tcp"
                ).get(T)
            )
            assert isinstance(output, BufferGone), output


# --- figures


def _speed(num_bytes: int, seconds: float) -> str:
    return f"{num_bytes / seconds / 1e9:,.3g} GB/s"


@check("figure: 256 MiB by CUDA IPC, beside a copy within the GPU; through the host, for comparison")
def figure_of_cuda_ipc(rig: Rig) -> str:
    owner, reader = _two_holders(rig, "figures")
    n = 256 * MIB
    buffer = owner.fill.call_one("f", n, 1).get(T)
    small = owner.fill.call_one("s", 4096, 1).get(T)
    pairs = [
        (reader.time_read.call_one(buffer, rig.device).get(T), reader.time_copy.call_one(n).get(T))
        for _ in range(3)
    ]
    ours, floor = (min(column) for column in zip(*pairs, strict=True))
    latency = reader.time_read.call_one(small, rig.device).get(T)
    by_host = reader.time_read.call_one(buffer, rig.device, "tcp").get(T)
    return (
        f"CUDA IPC {_speed(n, ours)}, a copy {_speed(n, floor)}: {floor / ours:.2f}x; 4 KiB in "
        f"{latency * 1e6:.0f} us; through the host by tcp {_speed(n, by_host)}"
    )


@check("figure: 64 MiB to the GPU memory of all ranks")
def broadcast_to_gpus(rig: Rig) -> str:
    holders: Any = rig.mesh.spawn("receivers", GpuHolder, rig.device)
    n = 64 * MIB
    source = holders.slice(gpus=0).fill.call_one("source", n, 7).get(T)
    targets = holders.fill.call("target", n, 0).get(T)
    receipts = [source.broadcast_into(targets).get(T) for _ in range(5)]
    assert all(holders.equals.call("target", 7).get(T).values())
    last = min(receipts, key=lambda receipt: receipt.seconds)
    assert last.num_receivers == len(rig.mesh)
    floor = holders.slice(gpus=1).time_copy.call_one(n).get(T)
    return f"{last}; {_speed(n * len(rig.mesh), last.seconds)} in all, a copy within a GPU {_speed(n, floor)}"


# --- collectives


def init_group(backend: str) -> None:
    import torch.distributed as dist

    dist.init_process_group(backend)


def all_reduced(device: str) -> float:
    import torch.distributed as dist

    tensor = torch.ones(1, device=device)
    dist.all_reduce(tensor)
    return float(tensor)


WAITS = """
import torch, torch.distributed as dist
tensor = torch.ones(1, device={device!r})
if rank == 0:
    dist.all_reduce(tensor)
    if tensor.is_cuda: torch.cuda.synchronize()
"""


@check("nccl: a group of one is aborted, made anew, and reduces")
def nccl_alone(rig: Rig) -> None:
    rig.close()  # ranks without a group
    one = rig.mesh.slice(gpus=slice(0, 1))
    setup_torch_elastic_env(one)
    one.execute(init_group, rig.backend).get(T)
    assert one.execute(all_reduced, rig.device).get(T).item() == 1.0
    assert one.execute(_abort_and_remake, rig.backend).get(T).item() > 0 or rig.is_rehearsal
    assert one.execute(all_reduced, rig.device).get(T).item() == 1.0


def _abort_and_remake(backend: str) -> int:
    """As the controller has it done, on this rank; return how many backends were aborted."""
    from monarch_nb._protocol.process_group import RemakeGroup, StoreAddress
    from monarch_nb._rank import collectives, rendezvous

    num = collectives.abort()
    address, port = rendezvous.start(rendezvous.GROUP)
    collectives.remake(RemakeGroup(StoreAddress(address, port), 1, backend, 600.0, {0: 0}), 0)
    return num


def _mesh_with_group(rig: Rig) -> Any:
    """Return two new ranks in a group that has reduced once."""
    rig.close()  # ranks without a group
    mesh = rig.mesh
    setup_torch_elastic_env(mesh)
    mesh.execute(init_group, rig.backend).get(T)
    assert list(mesh.execute(all_reduced, rig.device).get(T).values()) == [2.0, 2.0]
    return mesh


@check(
    "nccl: ranks reduce; one that waits for a peer that doesn't come is interrupted, and they reduce again",
    num_gpus=2,
)
def nccl_interrupted(rig: Rig) -> None:
    mesh = _mesh_with_group(rig)
    run = mesh.submit(WAITS.format(device=rig.device))
    wait_until(lambda: _stands_in_collective(mesh), "rank 0 waits in the collective")
    mesh.interrupt()
    assert run.wait().error() is not None, "the cell wasn't interrupted"
    assert list(mesh.execute(all_reduced, rig.device).get(T).values()) == [2.0, 2.0]


def _stands_in_collective(mesh: Any) -> bool:
    text = str(mesh.stacks("0")[0]["stacks"])
    return "all_reduce" in text or "synchronize" in text


@check("nccl: a rank is killed while its peer waits for it; heal makes the group anew", num_gpus=2)
def nccl_healed(rig: Rig) -> None:
    mesh = _mesh_with_group(rig)
    run = mesh.submit(WAITS.format(device=rig.device), "0")
    wait_until(lambda: _stands_in_collective(mesh), "rank 0 waits in the collective")
    os.kill(mesh.status().ranks[1].pid, signal.SIGKILL)
    assert run.wait().error() is not None, "the peer's death wasn't noticed"
    report = mesh.heal()
    assert any(
        f"the process group has been made anew ({rig.backend}, 2 ranks)" in output
        for output in report.messages
    ), report
    assert list(mesh.execute(all_reduced, rig.device).get(T).values()) == [2.0, 2.0]


# --- what is shown


def hold_memory(device: str, num_bytes: int) -> None:
    torch.held = torch.ones(num_bytes, dtype=torch.uint8, device=device)  # type: ignore[attr-defined]


@check("NVML: the live state has a row for each GPU, and each rank its own")
def nvml_rows(rig: Rig) -> str:
    mesh = rig.mesh
    mesh.execute(hold_memory, rig.device, 256 * MIB).get(T)
    rig.needs_a_gpu("rows of GPUs")
    row = wait_until(lambda: mesh.status().hosts[0] if mesh.status().hosts[0].gpus else None, "rows of GPUs")
    assert len(row.gpus) == row.num_gpus, row
    assert all(gpu.name and gpu.uuid and gpu.memory_total_bytes for gpu in row.gpus), row.gpus
    ranks = wait_until(lambda: _ranks_with(mesh, "gpus"), "ranks' GPUs")
    for rank in ranks:
        wait_until(
            lambda own=rank.gpus[0]: _used(mesh, own) >= 256 * MIB, f"rank {rank.rank}'s memory on its GPU"
        )
    reported = _memory_of_ranks(mesh)
    return f"{len(row.gpus)} x {row.gpus[0].name}; memory by rank: {reported}"


def _memory_of_ranks(mesh: Any) -> str:
    """NVML counts processes as the machine does; in a container they can't be told to be ranks."""
    try:
        ranks = wait_until(lambda: _ranks_with(mesh, "gpu_memory_bytes"), "", timeout_s=10.0)
    except AssertionError:
        return "not told by the driver (as in containers)"
    assert all(rank.gpu_memory_bytes >= 256 * MIB for rank in ranks), ranks
    return f"{ranks[0].gpu_memory_bytes / MIB:,.0f} MiB"


def _ranks_with(mesh: Any, field: str) -> Any:
    """Return the rows of all ranks once each has something in a field."""
    ranks = mesh.status().ranks
    return ranks if all(getattr(rank, field) for rank in ranks) else None


def _used(mesh: Any, index: int) -> int:
    return next(g.memory_used_bytes or 0 for g in mesh.status().hosts[0].gpus if g.index == index)


@check("the profile of a cell has kernels and the GPU's time")
def cuda_profile(rig: Rig) -> str:
    os.chdir(rig.folder)
    mesh = rig.mesh
    mesh.run(f"import torch\na = torch.ones(512, 512, device={rig.device!r})\nb = a @ a", quiet=True)
    profile = mesh.profile("for _ in range(10): b = a @ a\nprint(float(b[0, 0]))")
    mm = next(o for o in profile.operators if o.name == "aten::mm")
    assert mm.calls.most == 10, mm
    assert profile.file is not None
    assert Path(profile.file).exists()
    rig.needs_a_gpu("kernels")
    assert mm.gpu_s.least > 0, profile.text()
    assert "GPU" in profile.text()
    return f"aten::mm of 512 x 512: {mm.gpu_s.mean / 10 * 1e6:.1f} us on the GPU"


@check("the memory profile has CUDA's bytes and a history that can be read")
def cuda_memory(rig: Rig) -> str:
    os.chdir(rig.folder)
    mesh = rig.mesh
    mesh.run("import torch", quiet=True)
    profile = mesh.profile(
        f"kept = torch.ones({64 * MIB}, dtype=torch.uint8, device={rig.device!r})", memory=True
    )
    assert sorted(profile.memory) == [0, 1], profile.problems
    rig.needs_a_gpu("CUDA's history")
    for rank, report in profile.memory.items():
        assert 64 * MIB <= report["cuda_bytes"] <= 80 * MIB, report
        assert report["cuda_peak_bytes"] >= report["cuda_bytes"], report
        history = pickle.loads(Path(profile.snapshots[rank]).read_bytes())
        assert history["segments"], history.keys()
    assert "CUDA" in profile.text()
    return (
        f"{profile.memory[0]['cuda_bytes'] / MIB:.0f} MiB allocated, "
        f"{Path(profile.snapshots[0]).stat().st_size:,} bytes of history"
    )


@check("doctor finds the GPUs in use and measures the ways between them")
def doctor_measures(rig: Rig) -> str:
    mesh = rig.mesh
    mesh.execute(compute, rig.device).get(T)
    report = mesh.doctor(size_bytes=64 * MIB)
    measured = [m for m in report.measurements if m.path == rig.near_path]
    assert measured, report.text()
    assert all(m.gb_per_s for m in measured), report.text()
    if not rig.is_rehearsal:
        assert report.probes[0]["gpus"]["is_in_use"], report.probes[0]
        assert measured[0].source_device.startswith("cuda"), measured[0]
    return (
        f"{measured[0].path}: {measured[0].gb_per_s:.3g} GB/s, 4 KiB in {measured[0].latency_s * 1e6:.0f} us"
    )


@check("the state of an actor on a GPU is saved, and is there after its rank was killed and healed")
def gpu_checkpoint(rig: Rig) -> None:
    mesh = rig.mesh
    trainer: Any = mesh.spawn("trainer", GpuTrainer, rig.device)
    for _ in range(3):
        trainer.step.call().get(T)
    trainer.checkpoint.call().get(T)
    os.kill(mesh.status().ranks[1].pid, signal.SIGKILL)
    wait_until(lambda: not mesh.healthy(), "the loss is noticed")
    mesh.heal()
    assert list(trainer.step.call().get(T).values()) == [4.0, 4.0]
    assert list(trainer.where.call().get(T).values()) == [rig.device] * 2
