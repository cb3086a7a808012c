"""Actors that have memory, and actors that read it."""

from __future__ import annotations

import hashlib
import os
import signal
from typing import Any

import numpy
import torch

from monarch_nb.actor import Actor, ProcMesh, endpoint
from monarch_nb.rdma import Published, RDMAAction, RDMABuffer, Receipt, empty, load_into, publish


class Holder(Actor):
    """Has arrays, by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.buffers: dict[str, RDMABuffer] = {}

    @endpoint
    def put(self, name: str, value: Any, mappable: bool = False) -> RDMABuffer:
        if mappable:
            room = empty(tuple(value.shape), dtype=value.dtype)
            room[...] = value
            value = room
        self.arrays[name] = value
        self.buffers[name] = RDMABuffer(value)
        return self.buffers[name]

    @endpoint
    def put_every_second(self, name: str, value: Any) -> RDMABuffer:
        self.arrays[name] = value
        return RDMABuffer(value[:, ::2])

    @endpoint
    def get(self, name: str) -> Any:
        return self.arrays[name]

    @endpoint
    def set(self, name: str, index: int, value: float) -> None:
        self.arrays[name][index] = value

    @endpoint
    def put_pattern(self, name: str, length: int) -> RDMABuffer:
        self.arrays[name] = numpy.resize(numpy.arange(251, dtype=numpy.uint8), length)
        return RDMABuffer(self.arrays[name])

    @endpoint
    def broadcast(self, value: Any, mesh: ProcMesh, name: str) -> None:
        RDMABuffer(value).broadcast_into(mesh, name).get(60)

    @endpoint
    def digest(self, name: str) -> str:
        return hashlib.sha256(self.arrays[name].data).hexdigest()

    @endpoint
    def forget(self, name: str) -> None:
        del self.arrays[name]

    @endpoint
    def drop_and_spoil(self, name: str) -> None:
        self.buffers[name].drop()
        self.arrays[name][:] = 77

    @endpoint
    def drop(self, name: str) -> None:
        self.buffers[name].drop()

    @endpoint
    def read_only(self) -> RDMABuffer:
        return RDMABuffer(bytes(64))

    @endpoint
    def resize(self, name: str) -> str:
        try:
            self.arrays[name].untyped_storage().resize_(0)
        except RuntimeError as error:
            return str(error)
        return "resized"

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def read(self, buffer: RDMABuffer, path: str | None = None) -> tuple[Any, Receipt]:
        mine = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype))
        receipt = buffer.read_into(mine, path=path).get()
        return mine, receipt

    @endpoint
    async def read_and_await(self, buffer: RDMABuffer) -> Any:
        mine = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype))
        await buffer.read_into(mine)
        return mine

    @endpoint
    def batch(self, buffers: list[RDMABuffer]) -> tuple[list[Any], Receipt]:
        mine = [numpy.zeros(b.shape, b.dtype) for b in buffers]
        action = RDMAAction()
        for buffer, array in zip(buffers, mine, strict=True):
            action.read_remote(array, buffer)
        return mine, action.submit(timeout=30).get()


class Model(Actor):
    """Publishes a model, or loads one."""

    def __init__(self, seed: int, width: int = 64) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width))

    @endpoint
    def publish(self) -> Published:
        return publish(self.model.state_dict())

    @endpoint
    def load(self, source: Any) -> Receipt:
        return load_into(self.model.state_dict(), source)

    @endpoint
    def weights(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
