"""Actors with memory on a GPU; a module of their own, so that ranks import them by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from monarch_nb.actor import Actor, Checkpointed, endpoint
from monarch_nb.rdma import RDMABuffer, Receipt


def settle(device: str) -> None:
    """Wait until a device has done what was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


def best_s(function: Callable[[], Any], device: str, rounds: int = 10) -> float:
    """Return the least time of a call in seconds, the first two left out."""
    found = []
    for _ in range(rounds + 2):
        settle(device)
        start = time.perf_counter()
        function()
        settle(device)
        found.append(time.perf_counter() - start)
    return min(found[2:])


class GpuHolder(Actor):
    """Has tensors, by name."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.arrays: dict[str, Any] = {}
        self.buffers: dict[str, RDMABuffer] = {}

    def _keep(self, name: str, tensor: Any, buffer: RDMABuffer) -> RDMABuffer:
        self.arrays[name], self.buffers[name] = tensor, buffer
        settle(self.device)
        return buffer

    @endpoint
    def put(self, name: str, value: Any, device: str) -> RDMABuffer:
        tensor = value.clone().to(device)
        return self._keep(name, tensor, RDMABuffer(tensor))

    @endpoint
    def fill(self, name: str, num_bytes: int, value: int) -> RDMABuffer:
        tensor = torch.full((num_bytes,), value, dtype=torch.uint8, device=self.device)
        return self._keep(name, tensor, RDMABuffer(tensor))

    @endpoint
    def put_part(self, name: str, value: Any) -> RDMABuffer:
        """In the middle of an allocation, strided."""
        tensor = torch.zeros(3, *value.shape, dtype=value.dtype, device=self.device)
        tensor[1] = value.to(self.device)
        return self._keep(name, tensor, RDMABuffer(tensor[1][:, ::2]))

    @endpoint
    def read_to(self, buffer: RDMABuffer, device: str, path: str | None = None) -> tuple[Any, Receipt]:
        mine = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device)
        receipt = buffer.read_into(mine, path=path).get()
        return mine.cpu(), receipt

    @endpoint
    def write_from(self, buffer: RDMABuffer, value: Any, device: str, path: str | None = None) -> Receipt:
        return buffer.write_from(value.to(device), path=path).get()

    @endpoint
    def content(self, name: str) -> Any:
        return self.arrays[name].cpu()

    @endpoint
    def drop(self, name: str) -> None:
        self.buffers.pop(name).drop()
        del self.arrays[name]

    @endpoint
    def equals(self, name: str, value: int) -> bool:
        return bool((self.arrays[name] == value).all())

    @endpoint
    def time_read(self, buffer: RDMABuffer, device: str, path: str | None = None) -> float:
        room = torch.zeros(buffer.size(), dtype=torch.uint8, device=device)
        return best_s(lambda: buffer.read_into(room, path=path).get(), self.device)

    @endpoint
    def time_copy(self, num_bytes: int) -> float:
        """The floor: one copy within the device."""
        a, b = (torch.zeros(num_bytes, dtype=torch.uint8, device=self.device) for _ in range(2))
        return best_s(lambda: b.copy_(a), self.device)

    @endpoint
    def twice(self, values: dict[str, Any]) -> dict[str, Any]:
        assert values["x"].device.type == self.device, values["x"].device
        return {**values, "x": (values["x"] * 2).detach()}


class GpuTrainer(Checkpointed):
    """One weight on a GPU, saved when asked."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.weight = torch.zeros(1 << 18, device=device)

    def state_dict(self) -> Any:
        return {"weight": self.weight}

    def load_state_dict(self, state: Any) -> None:
        self.weight.copy_(state["weight"])

    @endpoint
    def step(self) -> float:
        self.weight.add_(1.0)
        return float(self.weight[-1])

    @endpoint
    def where(self) -> str:
        return str(self.weight.device.type)
