"""What hangs, and how tests wait for it to be explained."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from waiting import ask_until

from monarch_nb._why import Diagnosis, HangReport
from monarch_nb.actor import Actor, endpoint
from monarch_nb.mesh import CellRun, Mesh

PATIENCE_S = 60.0
LOCK = threading.Lock()

GROUP = """
if dist.is_initialized(): dist.destroy_process_group()
dist.init_process_group('gloo', init_method='file://{store}', rank=rank, world_size=world_size)
for _ in range(3): dist.all_reduce(torch.ones(1))
"""


def until(
    mesh: Mesh, kind: str, wanted: Callable[[Diagnosis], bool] = lambda _: True
) -> tuple[HangReport, Diagnosis]:
    """Ask why until there's a diagnosis of that kind; return it, with its report."""

    def found(report: HangReport) -> list[Diagnosis]:
        return [v for v in report.diagnoses if v.kind == kind and wanted(v)]

    def is_told(report: HangReport) -> bool:
        return bool(found(report)) and all(r.state != "starting" for r in report.rows)

    report = ask_until(mesh.why, is_told, f"a diagnosis {kind!r}")
    return report, found(report)[0]


def free(mesh: Mesh, run: CellRun) -> None:
    """Interrupt a cell, see it end, and the mesh run another."""
    mesh.interrupt()
    run.wait(PATIENCE_S)
    assert len(mesh.run("rank + 1", mesh.living_ranks()).bundles) == len(mesh.living_ranks())


class Waiter(Actor):
    """Waits for others of its kind."""

    @endpoint
    def step(self, first: Any, second: Any) -> None:
        second.back.call_one(first).get()

    @endpoint
    def back(self, first: Any) -> None:
        first.pong.call_one().get()

    @endpoint
    def pong(self) -> None: ...

    @endpoint
    def wait_for_lock(self) -> None:
        LOCK.acquire()
        LOCK.acquire()


class AsyncWaiter(Actor):
    """The same with an event loop."""

    @endpoint
    async def step(self, first: Any, second: Any) -> None:
        await second.back.call_one(first)

    @endpoint
    async def back(self, first: Any) -> None:
        await first.pong.call_one()

    @endpoint
    async def pong(self) -> None: ...


class Waiters:
    """Actors on all ranks of a mesh, two of which may wait for each other."""

    def __init__(self, mesh: Mesh, kind: str) -> None:
        self.actors: Any = mesh.spawn("trainer", globals()[kind])
        self.first = dict(mesh.extent.point(0))
        self.second = dict(mesh.extent.point(1))

    def close_the_circle(self) -> Any:
        """Have the first call the second, which calls the first."""
        first, second = self.actors.slice(**self.first), self.actors.slice(**self.second)
        return first.step.call_one(first, second)

    def free(self, pending: Any) -> None:
        """Interrupt the call, and end the actors."""
        from monarch_nb.actor.interrupt import send_interrupts

        while not pending.done():
            send_interrupts(pending._pending)
            pending._pending.transport.reader.wait(pending._pending, time.monotonic() + 1.0)
        self.actors.stop().get(PATIENCE_S)
