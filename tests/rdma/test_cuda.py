"""GPU memory: CUDA IPC between ranks of one machine, and every other pair of memories through the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from memory_actors import Holder

from monarch_nb.actor import ProcMesh, endpoint
from monarch_nb.exceptions import BufferGone
from monarch_nb.rdma import RDMABuffer, Receipt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


class GpuHolder(Holder):
    """Has tensors on a GPU."""

    @endpoint
    def put_on_gpu(self, name: str, value: Any) -> RDMABuffer:
        self.arrays[name] = value.cuda()
        self.buffers[name] = RDMABuffer(self.arrays[name])
        return self.buffers[name]

    @endpoint
    def put_part(self, name: str, value: Any) -> RDMABuffer:
        """In the middle of an allocation, strided."""
        self.arrays[name] = torch.zeros(3, *value.shape, dtype=value.dtype, device="cuda")
        self.arrays[name][1] = value.cuda()
        return RDMABuffer(self.arrays[name][1][:, ::2])

    @endpoint
    def read_to(self, buffer: RDMABuffer, device: str, path: str | None = None) -> tuple[Any, Receipt]:
        mine = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device)
        receipt = buffer.read_into(mine, path=path).get()
        return mine.cpu(), receipt

    @endpoint
    def write_from(self, buffer: RDMABuffer, value: Any, device: str, path: str | None = None) -> Receipt:
        return buffer.write_from(value.to(device), path=path).get()

    @endpoint
    def on_host(self, name: str) -> Any:
        return self.arrays[name].cpu()


@pytest.fixture(scope="module")
def pair(procs: ProcMesh) -> Iterator[tuple[GpuHolder, GpuHolder]]:
    actors = procs.spawn("gpu_holders", GpuHolder)
    return actors.slice(ranks=0), actors.slice(ranks=1)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_between_two_processes_by_cuda_ipc(pair: tuple[GpuHolder, GpuHolder], device: str) -> None:
    owner, reader = pair
    values = torch.randn(1000, 300)
    buffer = owner.put_on_gpu.call_one("w", values).get()
    found, receipt = reader.read_to.call_one(buffer, device).get()
    assert torch.equal(found, values)
    assert receipt.path == "cuda_ipc"
    assert reader.write_from.call_one(buffer[10:20], -values[10:20], device).get().path == "cuda_ipc"
    values[10:20] *= -1
    assert torch.equal(owner.on_host.call_one("w").get(), values)


def test_offsets_within_an_allocation(pair: tuple[GpuHolder, GpuHolder]) -> None:
    owner, reader = pair
    values = torch.arange(60.0).reshape(6, 10)
    buffer = owner.put_part.call_one("p", values).get()
    found, receipt = reader.read_to.call_one(buffer, "cuda").get()
    assert torch.equal(found, values[:, ::2])
    assert receipt.path == "cuda_ipc"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("path", ["tcp", "message"])
def test_through_the_host(pair: tuple[GpuHolder, GpuHolder], device: str, path: str) -> None:
    owner, reader = pair
    values = torch.randn(3 << 20)
    buffer = owner.put_on_gpu.call_one("t", values).get()
    found, receipt = reader.read_to.call_one(buffer, device, path).get()
    assert torch.equal(found, values)
    assert receipt.path == path
    reader.write_from.call_one(buffer, -values, device, path).get()
    assert torch.equal(owner.on_host.call_one("t").get(), -values)


def test_gpu_memory_reads_host_memory_by_shm(pair: tuple[GpuHolder, GpuHolder]) -> None:
    owner, reader = pair
    values = torch.randn(1 << 20)
    buffer = owner.put.call_one("h", values).get()
    found, receipt = reader.read_to.call_one(buffer, "cuda").get()
    assert torch.equal(found, values)
    assert receipt.path == "shm"


def test_a_dropped_one_says_so(pair: tuple[GpuHolder, GpuHolder]) -> None:
    owner, reader = pair
    buffer = owner.put_on_gpu.call_one("d", torch.zeros(1000)).get()
    reader.read_to.call_one(buffer, "cuda").get()
    owner.drop.call_one("d").get()
    with pytest.raises(Exception, match="its owner has dropped it") as caught:
        reader.read_to.call_one(buffer, "cuda").get()
    assert isinstance(getattr(caught.value, "exception", None), BufferGone)
