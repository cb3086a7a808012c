"""Actors that own others, fail on purpose, and say who they are."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import time
from typing import Any

from monarch_nb.actor import (
    Actor,
    MeshFailure,
    Port,
    concurrent_endpoint,
    context,
    endpoint,
    this_host,
    this_proc,
)


class Ended(BaseException):
    """No Exception: an actor doesn't survive it."""


class Leaf(Actor):
    """Says so when it cleans up."""

    def __init__(self, name: str, port: Port[str]) -> None:
        self.name = name
        self.port = port

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError("something is wrong")

    def __cleanup__(self, error: BaseException | None) -> None:
        time.sleep(0.05)  # it takes its time
        self.port.send(self.name)


class Owner(Leaf):
    """Owns an actor beside it, one on processes of its own, and one that owns another."""

    def __init__(self, name: str, port: Port[str], depth: int = 1) -> None:
        super().__init__(name, port)
        self.beside = this_proc().spawn("beside", Leaf, f"{name}.beside", port)
        self.procs = this_host().spawn_procs()
        self.on_procs = self.procs.spawn("on_procs", Leaf, f"{name}.on_procs", port)
        self.deeper = this_proc().spawn("deeper", Owner, f"{name}.deeper", port, 0) if depth else None

    @endpoint
    def children(self) -> tuple[Any, int]:
        self.beside.initialized.get()
        if self.deeper is not None:
            self.deeper.children.call_one().get()
        return self.beside, int(self.on_procs.pid.call_one().get())


class Failing(Actor):
    @endpoint
    def raise_base(self) -> None:
        raise Ended("no more")

    @endpoint
    async def raise_base_async(self) -> None:
        raise SystemExit(3)

    @endpoint
    def end(self, how: str) -> str:
        getattr(context().actor_instance, how)("enough")
        return "answered"

    @endpoint(explicit_response_port=True)
    def raise_instead_of_answering(self, port: Port[int]) -> None:
        raise ValueError("no answer")

    @endpoint
    def raise_plainly(self) -> None:
        raise ValueError("an error")

    @endpoint
    def ok(self) -> int:
        return os.getpid()


class Waiting(Actor):
    """Waits in an endpoint until it is told that what it owns has failed."""

    def __init__(self, is_async_hook: bool) -> None:
        self.heard = asyncio.Event()
        self.failures: list[str] = []
        self.is_async_hook = is_async_hook

    def __supervise__(self, failure: MeshFailure) -> Any:
        return self._take(failure) if self.is_async_hook else self._note(failure)

    async def _take(self, failure: MeshFailure) -> bool:
        await asyncio.sleep(0)
        return self._note(failure)

    def _note(self, failure: MeshFailure) -> bool:
        self.failures.append(str(failure))
        self.heard.set()
        return True

    @endpoint
    async def break_child_and_wait(self) -> list[str]:
        child = this_proc().spawn("child", Failing)
        child.raise_plainly.broadcast()
        await self.heard.wait()
        return self.failures

    @concurrent_endpoint
    async def nothing(self) -> None:
        """Makes no difference."""


class Who(Actor):
    """Says who it is, and by what name it logs."""

    @endpoint
    def am_i(self) -> dict[str, Any]:
        me = context().actor_instance
        assert me.creator is not None
        return {
            "full": str(me),
            "name": me.name,
            "class": me.class_name,
            "by": str(me.creator),
            "by_name": me.creator.name,
            "procs": me.proc_mesh,
            "logger": self.logger.name,
        }

    @endpoint
    def child(self) -> dict[str, Any]:
        return dict(this_proc().spawn("child", Who).am_i.call_one().get())

    @endpoint
    def logged(self, with_name: bool) -> str:
        from monarch_nb.actor import config

        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        self.logger.addHandler(handler)
        config.prefix_python_logs_with_actor = with_name
        try:
            self.logger.info("100%% of %s", "it")
        finally:
            config.prefix_python_logs_with_actor = True
            self.logger.removeHandler(handler)
        return stream.getvalue().strip()


class Parent(Leaf):
    """Owns an actor beside it."""

    def __init__(self, name: str, port: Port[str]) -> None:
        super().__init__(name, port)
        self.child = this_proc().spawn("child", Leaf, f"{name}.child", port)


class OwnsElsewhere(Actor):
    """Owns an actor in another process, which owns another, and one on processes of its own."""

    def __init__(self, port: Port[str], other: Any) -> None:
        self.elsewhere = other.spawn("elsewhere", Parent, "elsewhere", port)
        self.procs = this_host().spawn_procs()
        self.on_procs = self.procs.spawn("on_procs", Leaf, "on_procs", port)

    @endpoint
    def pids(self) -> tuple[int, int, int]:
        return os.getpid(), self.elsewhere.pid.call_one().get(), self.on_procs.pid.call_one().get()
