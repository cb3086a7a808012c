"""Actors that the tests spawn."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

from monarch_nb.actor import (
    Actor,
    MeshFailure,
    Port,
    concurrent_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
)


class Counter(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.seen: list[int] = []

    @endpoint
    def increment(self, by: int = 1) -> int:
        self.value += by
        return self.value

    @endpoint
    def get(self) -> int:
        return self.value

    @endpoint
    def note(self, number: int) -> None:
        self.seen.append(number)

    @endpoint
    def noted(self) -> list[int]:
        return self.seen

    def plain(self, x: int) -> int:
        return x + self.value


class Holder(Actor):
    """Holds calls until a file is there."""

    def __init__(self) -> None:
        self.num = 0

    @endpoint
    def hold(self, path: str) -> None:
        self.num += 1
        while not os.path.exists(path):
            time.sleep(0.001)

    @endpoint
    def count(self) -> int:
        return self.num


class Where(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def rank(self) -> tuple[int, dict[str, int], dict[str, int], str]:
        point = current_rank()
        return point.rank, dict(point), current_size(), current_actor_name()

    @endpoint
    def own_rank(self) -> dict[str, int]:
        return dict(context().actor_instance.rank)

    @endpoint
    def thread(self) -> tuple[str, bool]:
        return threading.current_thread().name, threading.current_thread() is threading.main_thread()

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def say_number(self) -> None:
        print(f"number {current_rank().rank} speaks")

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class Mixed(Actor):
    """Sync, async and concurrent endpoints in one actor."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.log: list[str] = []

    @endpoint
    def sync(self) -> str:
        self.log.append("sync")
        return "sync"

    @endpoint
    async def slow(self) -> str:
        self.log.append("slow begins")
        await asyncio.sleep(0.05)
        self.log.append("slow ends")
        return "slow"

    @concurrent_endpoint
    async def wait_for_gate(self) -> str:
        await self.gate.wait()
        return "open"

    @endpoint
    async def open_gate(self) -> None:
        self.gate.set()

    @endpoint
    def history(self) -> list[str]:
        return self.log

    @endpoint
    async def ask(self, other: Any) -> int:
        values = await other.get.call()
        return int(values.reduce("sum"))


class Faulty(Actor):
    @endpoint
    def raise_on(self, ranks: list[int], text: str) -> int:
        rank = current_rank().rank
        if rank in ranks:
            raise ValueError(text)
        return rank

    @endpoint
    def raise_alone(self) -> None:
        raise ValueError(f"rank {current_rank().rank} is unique")

    @endpoint
    def leave(self, code: int) -> None:
        print("last words", flush=True)
        os._exit(code)

    @endpoint
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def unpicklable(self) -> Any:
        return {"lock": threading.Lock()}

    @endpoint
    def ok(self) -> str:
        return "ok"


class BadStart(Actor):
    def __init__(self) -> None:
        raise RuntimeError("cannot construct")

    @endpoint
    def anything(self) -> None:
        """Never runs."""


class Stuck(Actor):
    """Its constructor does not return."""

    def __init__(self) -> None:
        threading.Event().wait()


class Caller(Actor):
    """Calls others, holds handles, spawns its own."""

    def __init__(self, other: Any = None) -> None:
        self.other = other

    @endpoint
    def total(self, by: int) -> int:
        return sum(self.other.increment.call(by).get().values())

    @endpoint
    def hold(self, other: Any) -> None:
        self.other = other

    @endpoint
    def spawn_counter(self, start: int) -> Any:
        from monarch_nb.actor import this_proc

        return this_proc().spawn("child", Counter, start)

    @endpoint(explicit_response_port=True)
    def answer_on_port(self, port: Port[int], value: int) -> None:
        port.send(value * 2)

    @endpoint
    def send_many(self, port: Port[int], n: int) -> None:
        for i in range(n):
            port.send(i)


class Owner(Actor):
    """Owns a child that fails, and handles it."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.arrived = threading.Event()

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(str(failure))
        return True

    @endpoint
    def start_and_break(self) -> None:
        from monarch_nb.actor import this_proc

        self.child = this_proc().spawn("child", Faulty)
        self.child.raise_alone.broadcast()

    @endpoint
    def heard(self) -> list[str]:
        return self.failures


class Cleaner(Actor):
    def __init__(self, path: str) -> None:
        self.path = path

    @endpoint
    def ready(self) -> bool:
        return True

    def __cleanup__(self, error: BaseException | None) -> None:
        with open(f"{self.path}/{context().message_rank.rank}", "w") as file:
            file.write(repr(error))


class Tensors(Actor):
    @endpoint
    def change_in_place(self, tensor: Any) -> tuple[int, int]:
        before = int(tensor[-1])
        tensor[-1] = current_rank().rank
        return before, int(tensor[-1])

    @endpoint
    def keep(self, tensor: Any) -> None:
        self.kept = tensor

    @endpoint
    def drop(self) -> None:
        self.kept = None

    @endpoint
    def last_of_kept(self) -> int:
        return int(self.kept[-1])

    @endpoint
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @endpoint
    def make(self, num_bytes: int) -> Any:
        import torch

        tensor = torch.zeros(num_bytes, dtype=torch.uint8)
        tensor[-1] = current_rank().rank
        return tensor


class Busy(Actor):
    """Works for ever, and says when it has begun."""

    @endpoint
    def spin(self, ready: Port) -> None:
        ready.send(os.getpid())
        while True:
            pass

    @endpoint
    def count(self) -> int:
        return 1


class AsyncBusy(Actor):
    """Waits for ever, and says when it has begun."""

    @endpoint
    async def nap(self, ready: Port) -> None:
        ready.send(os.getpid())
        await asyncio.sleep(600)

    @concurrent_endpoint
    async def nap_beside(self, ready: Port) -> None:
        ready.send(os.getpid())
        await asyncio.sleep(600)

    @endpoint
    async def count(self) -> int:
        return 1


class AsyncHolder(Actor):
    """Holds a call in an await, until it's cancelled."""

    @endpoint
    async def hold(self) -> None:
        await self._wait()

    async def _wait(self) -> None:
        await asyncio.sleep(600)


class Talker(Actor):
    """Prints before it answers."""

    def __init__(self) -> None:
        print("made")

    @endpoint
    def say(self, what: object) -> object:
        print("said", what)
        return what

    @endpoint
    def err(self, what: object) -> object:
        print("warned", what, file=sys.stderr)
        return what

    @endpoint
    def fail(self, what: str) -> None:
        print("before", what)
        raise ValueError(what)

    @endpoint(explicit_response_port=True)
    def send(self, port: Port[str], what: str) -> None:
        print("sent", what)
        port.send(what)

    @endpoint
    def silent(self, what: object) -> object:
        return what


class AsyncTalker(Actor):
    """Prints before it answers, in an event loop."""

    @endpoint
    async def say(self, what: object) -> object:
        await asyncio.sleep(0)
        print("said", what)
        return what
