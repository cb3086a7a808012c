"""Requests for hosts of engines, as pages see them: which there are, starting, waiting and cancelling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from monarch_nb._client.launch import find_claim
from monarch_nb._server.messages import AllocationRow, Cluster, StartRequest
from monarch_nb._server.repeating import repeat
from monarch_nb._server.starting import START_S, command
from monarch_nb._server.waiting import WaitingStart
from monarch_nb.exceptions import MeshError, MeshNotFound, MeshStartError, NameTaken

if TYPE_CHECKING:
    from monarch_nb.job.allocation import Allocation
    from monarch_nb.job.engines import Look
    from monarch_nb.job.profiles import Profile

T = TypeVar("T")
READ_S = 1.0
"""Interval at which the records of requests are read, while a page shows them."""
WAITING_LOOK_S = 5.0
"""Interval at which engines are asked, while a request waits."""
LOOK_S = 30.0
"""Interval at which engines are asked, while all hosts are there."""
_SUBMITTED_S = 0.1


class AllocationService:
    """The requests of this user for hosts of engines. Owned by the event loop's thread; engines are asked in
    the pool, and only while somebody watches.

    Args:
        pool: the threads for what may block.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._listeners: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._rows: list[AllocationRow] | None = None
        self._failed: dict[str, AllocationRow] = {}
        """Requests whose ranks couldn't be started, until somebody has read why."""
        self._starts: dict[str, WaitingStart] = {}
        self._seen: dict[str, AllocationRow] = {}
        """What was seen last of a request that is waited for: one that has failed is gone before its start
        ends.
        """
        self._is_stale = True
        self._looked_at = 0.0
        self._digest = ""

    # --- what there is

    @property
    def rows(self) -> list[AllocationRow] | None:
        """The rows as last seen, oldest request first; None before the first look."""
        if self._rows is None:
            return None
        there = {row.name for row in self._rows}
        failed = [row for name, row in self._failed.items() if name not in there]
        found = [replace(row, is_waited_for=row.name in self._starts) for row in [*self._rows, *failed]]
        return sorted(found, key=lambda row: row.submitted_at)

    async def look(self) -> list[AllocationRow]:
        """Ask the engines, and return the rows."""
        self._rows = await self._ask(rows)
        for row in self._rows:
            if row.name in self._starts:
                self._seen[row.name] = row
            if row.is_up:  # another program has started its ranks
                self._failed.pop(row.name, None)
        self._tell()
        return self.rows or []

    async def clusters(self) -> list[Cluster]:
        """Return where hosts can be asked for; see `clusters`."""
        return await self._ask(clusters)

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change, and keep the rows up to date; return a function that ends
        that.
        """
        self._listeners.append(listener)
        if self._task is None:
            self._is_stale = True
            repeating = repeat(self._look_if_due, READ_S, "the requests to engines can't be listed")
            self._task = asyncio.ensure_future(repeating)

        def stop() -> None:
            self._listeners.remove(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

        return stop

    async def _look_if_due(self) -> None:
        """Bring the rows up to date, if a record has changed or the engines are to be asked again."""
        now = asyncio.get_running_loop().time()
        known = await self._ask(digest)
        waits = any(row.state == "queued" or not row.is_up for row in self._rows or ())
        is_due = now - self._looked_at >= (WAITING_LOOK_S if waits else LOOK_S)
        if self._is_stale or known != self._digest or is_due:
            self._is_stale, self._looked_at = False, now
            await self.look()
            self._digest = known

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    async def _ask(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    # --- what is done

    async def start(self, request: StartRequest, directory: str) -> AllocationRow | None:
        """Ask an engine for the hosts of a mesh; return the request once the engine has it. The hosts are
        waited for by a process of its own, which starts the ranks then.

        Args:
            directory: the working directory of the ranks.

        Returns:
            The request; None if the mesh runs already.

        Raises:
            NameTaken: if hosts were asked for under that name.
            MeshStartError: if the engine gives none, with what it says.
        """
        await self._ask(lambda: check_free(request.name))
        self._failed.pop(request.name, None)
        start = self._wait_by(request.name, command(request), directory)
        deadline = asyncio.get_running_loop().time() + START_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.wait([start.ended], timeout=_SUBMITTED_S)
            has_ended = start.ended.done()
            if has_ended and start.ended.result():
                self._failed.pop(request.name, None)  # it's told here
                raise MeshStartError(start.ended.result())
            row = await self._ask(lambda: submitted_row(request.name, start.pid))
            if has_ended:
                return None
            if row is not None and not start.ended.done():
                self._is_stale, self._seen[request.name] = True, row
                return replace(row, is_waited_for=True)
        raise MeshStartError(
            f"the engine has not taken the request for mesh {request.name!r} within {START_S:g} s; it's "
            "asked on: the list of requests shows how it is"
        )

    async def wait(self, name: str, directory: str) -> None:
        """Wait for the hosts of a mesh that were requested before, and start its ranks then.

        Raises:
            MeshNotFound: if no hosts are waited for under that name.
        """
        await self._ask(lambda: check_waits(name))
        if name not in self._starts:
            self._wait_by(name, ["start", name], directory)
        self._tell()

    async def cancel(self, name: str) -> None:
        """Give back the hosts of a mesh, whether it waits for them or runs; forget a start that has failed.

        Raises:
            MeshNotFound: if nothing was asked for under that name.
            EngineError: if the engine can't be reached.
        """
        has_failed = self._failed.pop(name, None) is not None
        self._seen.pop(name, None)
        self._starts.pop(name, None)  # it ends with its mesh, and that isn't a failure
        await self._ask(lambda: cancel(name, is_known=has_failed))
        await self.look()

    def _wait_by(self, name: str, arguments: list[str], directory: str) -> WaitingStart:
        start = WaitingStart(arguments, directory, lambda ended, why: self._ended(name, ended, why))
        self._starts[name] = start
        return start

    def _ended(self, name: str, start: WaitingStart, why: str) -> None:
        """Keep why a mesh did not start, unless it was cancelled."""
        if self._starts.get(name) is not start:
            return
        del self._starts[name]
        row = self._seen.pop(name, None)
        if why and row is not None:
            self._failed[name] = replace(row, state="failed", reason=why, trouble="", starts_at=None)
        self._is_stale = True
        self._tell()


# --- what runs in the pool


def rows() -> list[AllocationRow]:
    """Return a row for each request, as its engine says; a mesh that has grown has several."""
    from monarch_nb.job.cost import cost_of, counted
    from monarch_nb.mesh.allocation_status import look_again
    from monarch_nb.mesh.on_engine import looks

    found, now = looks(keeps_ended=True), time.time()
    for name in {asked.mesh for asked, _ in found}:
        with suppress(MeshError):  # the row is shown, whether its mesh answers or not
            look_again(name)
    return [replace(row_of(asked, look), cost=cost_of([counted(asked, look, now)])) for asked, look in found]


def row_of(asked: Allocation, look: Look) -> AllocationRow:
    """Return the row of a request."""
    return AllocationRow(
        name=asked.mesh,
        job=asked.described(),
        hosts=str(asked.spec.wanted),
        num_hosts=len(look.nodes),
        state=look.state.value,
        reason=look.reason,
        trouble=look.trouble,
        submitted_at=asked.submitted_at,
        starts_at=look.starts_at if look.state == "queued" else None,
        ends_at=look.ends_at if look.state == "granted" else None,
        is_up=asked.is_up,
        is_waited_for=False,
    )


def digest() -> str:
    """Return a text that is another one whenever a record is."""
    from monarch_nb.job.allocation import list_records

    return "\n".join(asked.to_json() for asked in list_records())


def names_that_wait() -> frozenset[str]:
    """Return the names of meshes that have no ranks yet, because they wait for their hosts."""
    from monarch_nb.job.allocation import list_records

    return frozenset(asked.mesh for asked in list_records() if not asked.is_up)


def submitted_row(name: str, pid: int) -> AllocationRow | None:
    """Return a request that a program has made, once the engine has it."""
    from monarch_nb.job.allocation import read_record
    from monarch_nb.mesh.allocation_status import look_at

    asked = read_record(name)
    if asked is None or asked.submitted_by != pid or not asked.has_answer:
        return None
    return row_of(asked, look_at(asked))


def check_free(name: str) -> None:
    """Raise if a mesh of that name waits for hosts or runs: its request would be taken for the new one.

    Raises:
        NameTaken: saying so.
    """
    if find_claim(name) is not None:
        raise NameTaken(f"mesh {name!r} runs already, or waits for its hosts; choose another name")


def check_waits(name: str) -> None:
    """Raise if no hosts are waited for under that name.

    Raises:
        MeshNotFound: saying so.
    """
    from monarch_nb.job.allocation import read_record

    asked = read_record(name)
    if asked is None or asked.is_up:
        raise MeshNotFound(f"no request for hosts of a mesh {name!r} is waiting")


def cancel(name: str, *, is_known: bool) -> None:
    """Release the hosts of a mesh.

    Args:
        is_known: whether it's no error that there are none.
    """
    from monarch_nb.job.allocation import read_record
    from monarch_nb.mesh import on_engine

    if not is_known or read_record(name) is not None:
        on_engine.cancel(name)


def clusters() -> list[Cluster]:
    """Return the profiles of clusters.toml, the engines without one, and last the profiles that can't be used
    for a mistake in them.
    """
    from monarch_nb._commands.clusters import list_clusters

    found, wrong = list_clusters()
    mistaken = [Cluster(name=name, engine="", is_profile=True, why_not=text) for name, text in wrong.items()]
    return [*(_cluster(profile, why_not) for profile, why_not in found), *mistaken]


def _cluster(profile: Profile, why_not: str) -> Cluster:
    from monarch_nb._commands.clusters import hosts_of

    spec = profile.spec
    return Cluster(
        name=profile.name,
        engine=spec.engine,
        is_profile=bool(profile.source),
        why_not=why_not,
        hosts=hosts_of(spec),
        gpus=spec.gpus,
        time_s=spec.time_s,
        partition=spec.partition,
        usd_per_gpu_hour=spec.usd_per_gpu_hour,
    )
