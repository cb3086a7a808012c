"""A path within this process: a copy."""

from __future__ import annotations

from monarch_nb.rdma import staging
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.path import READ, Job, Path


class LocalPath(Path):
    """The path that copies within this process, on any device."""

    name = "local"
    reaches_gpus = True
    takes_strides = True

    def concerns(self, handle: Handle, local: Memory) -> bool:
        return handle.is_ours

    def refusal(self, handle: Handle, local: Memory) -> str:
        return "" if handle.is_ours else "the owner is another process"

    def is_quick(self, handle: Handle) -> bool:
        return True

    def transfer(self, job: Job) -> None:
        region = self.plane.region_of(job.handle)
        there = region.memory.at(job.handle.layout)
        source, target = (there, job.local) if job.op == READ else (job.local, there)
        if source.is_cpu and target.is_cpu:
            staging.put(staging.strided(source), target)
        else:
            _copy_by_torch(source, target)
        job.moved(job.nbytes)


def _copy_by_torch(source: Memory, target: Memory) -> None:
    import torch

    found = staging.tensor_of_bytes(source)
    into = staging.tensor_of_bytes(target)
    into.copy_(found.reshape(-1).reshape(into.shape) if found.shape != into.shape else found)
    for memory in (source, target):
        if not memory.is_cpu:
            torch.cuda.current_stream(memory.device).synchronize()
