"""Actors of one mesh that use what they were handed of another."""

from __future__ import annotations

import os
from typing import Any

from monarch_nb.actor import Actor, Channel, MeshFailure, Port, current_rank, endpoint


class Store(Actor):
    """Lives in the other mesh."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def total(self, tensor: Any) -> Any:
        return tensor * 2

    @endpoint
    def send(self, port: Port[Any]) -> None:
        port.send(current_rank().rank)

    @endpoint
    def fail(self) -> None:
        raise ValueError("the store is broken")

    @endpoint
    def die(self) -> None:
        os._exit(3)


class Visitor(Actor):
    """Lives in one mesh, and is handed what belongs to another."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.kept: Any = None
        self.heard: Port[str] | None = None

    def __supervise__(self, failure: MeshFailure) -> bool:
        assert self.heard is not None
        self.heard.send(str(failure))
        return True

    @endpoint
    def add(self, store: Any, n: int) -> list[int]:
        return list(store.add.call(n).get().values())

    @endpoint
    async def add_async(self, store: Any, n: int) -> list[int]:
        return list((await store.add.call(n)).values())

    @endpoint
    def spawn_on(self, procs: Any) -> tuple[Any, list[int]]:
        procs.initialized.get()
        store = procs.spawn("store", Store, 100)
        return store, list(store.pid.call().get().values())

    @endpoint
    def spawn_procs_on(self, hosts: Any) -> list[int]:
        procs = hosts.spawn_procs({"gpus": 1})
        try:
            return list(procs.execute(os.getppid).get().values())
        finally:
            procs.stop().get()

    @endpoint
    def keep_procs_on(self, hosts: Any) -> Any:
        self.kept = hosts.spawn_procs({"gpus": 1})
        self.kept.initialized.get()
        return self.kept

    @endpoint
    def pass_on(self, value: Any) -> Any:
        return value

    @endpoint
    def receive(self, store: Any) -> list[int]:
        port, receiver = Channel.open()
        store.send.broadcast(port)
        return sorted(receiver.recv().get(60) for _ in range(len(store)))

    @endpoint
    def double(self, store: Any, num: int) -> float:
        import torch

        return float(store.slice(gpus=0).total.call_one(torch.ones(num)).get().sum())

    @endpoint
    def send_to(self, port: Port[int], value: int) -> None:
        port.send(value)

    @endpoint
    def let_fail(self, store: Any) -> None:
        store.fail.call().get()

    @endpoint
    def own(self, procs: Any, heard: Port[str]) -> Any:
        self.heard = heard
        self.kept = procs.spawn("owned", Store)
        self.kept.initialized.get()
        return self.kept

    @endpoint
    def let_it_fail(self) -> None:
        self.kept.slice(gpus=0).fail.broadcast()

    @endpoint
    def stop_kept(self) -> None:
        self.kept.stop().get()


class Onlooker(Actor):
    """Spawns on another mesh, and has no `__supervise__`."""

    @endpoint
    def let_one_fail(self, procs: Any) -> None:
        store = procs.spawn("unwatched", Store)
        store.slice(gpus=0).fail.broadcast()
