"""Handles on a mesh whose controller is on another machine than this process: an envoy uses them for us.

Meshes are entered on the machine of their controller. Whoever has brought two meshes together was on the
machine of both controllers, and so can an actor be: the envoy, one for each mesh, in a process of its own
beside our controller. What goes through it takes the way that it would take anyhow, encrypted between
machines, and no key is handed out.

What an envoy spawns belongs to the actor that has asked for it: that is told of failures, and if its process
ends without having stopped it, the envoy does. If the envoy's own process ends, the other mesh does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from monarch_nb._protocol.events import RanksEnded
from monarch_nb._protocol.registry import Handlers, Sender, handles
from monarch_nb._transport import process_context
from monarch_nb._transport.context import call_context
from monarch_nb.actor.actor_mesh import Actor, ActorMesh, actor_id_of
from monarch_nb.actor.controller import mesh_controller
from monarch_nb.actor.endpoint import concurrent_endpoint
from monarch_nb.actor.envoy import relay_by
from monarch_nb.actor.future import Future
from monarch_nb.actor.handle import disown, placement_of
from monarch_nb.actor.ownership import acting
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import DeviceMeshError, MeshError

_ENVOY = "monarch_nb.envoy"


class Asker(NamedTuple):
    """The sender of a request to an envoy: a process of our mesh, and the actor that runs in it (0: none)."""

    proc: int
    actor: int


class Spawned(NamedTuple):
    """A mesh that an envoy has spawned, and the asker that it was spawned for."""

    handle: ActorMesh[Any] | ProcMesh
    asker: Asker


class Envoy(Actor):
    """The actor on the machine of our controller that uses handles on other meshes for us."""

    def __init__(self) -> None:
        self._spawned: dict[int | str, Spawned] = {}
        """The spawned objects that still live, by `_key`."""
        self._runner = call_context.get().actor
        self._loop = asyncio.get_running_loop()
        process_context.transport().event_handlers.append(Handlers(self))

    @concurrent_endpoint
    async def do(self, asker: Asker, handle: Any, path: Sequence[str], args: Any, kwargs: Any) -> Any:
        """Call the function at `path` of a handle; return its result, once it has arrived."""
        if tuple(path) == ("stop",):
            self._forget(handle)
        for name in path:
            handle = getattr(handle, name)
        result = handle(*args, **kwargs)
        if isinstance(result, ActorMesh | ProcMesh):
            disown(result)  # the spawned mesh belongs to its asker
            self._spawned_for(asker, result)
            return result
        return await result if inspect.isawaitable(result) else result

    def _spawned_for(self, asker: Asker, mesh: ActorMesh[Any] | ProcMesh) -> None:
        if isinstance(mesh, ActorMesh):
            self._runner.spawned_for[actor_id_of(mesh)] = asker
        if asker.actor:  # spawns of a cell outlive its rank, as in the cell's own mesh
            self._spawned[_key(mesh)] = Spawned(mesh, asker)
        if asker.proc in process_context.transport().ends:  # its asker has ended meanwhile
            self._stop_those_of({asker.proc})

    def _forget(self, mesh: ActorMesh[Any] | ProcMesh) -> None:
        if placement_of(mesh).is_whole:
            self._spawned.pop(_key(mesh), None)
            self._runner.spawned_for.pop(_key(mesh), None)

    @handles(RanksEnded)
    def on_ranks_ended(self, event: RanksEnded, sender: Sender) -> None:
        """Stop what this actor has spawned for actors on ended ranks of this mesh. Called in the reading
        thread.
        """
        procs = {end.proc for end in event.ends}
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_those_of, procs)

    def _stop_those_of(self, procs: set[int]) -> None:
        """Stop what was spawned for actors of some processes, the newest first."""
        for mesh, asker in reversed(list(self._spawned.values())):
            if asker.proc in procs:
                self._forget(mesh)
                with suppress(Exception):  # the mesh may be gone, with its process
                    mesh.stop(f"the process of its owner, {_rank_of(asker.proc)}, has ended").drop()


def _key(mesh: ActorMesh[Any] | ProcMesh) -> Any:
    return actor_id_of(mesh) if isinstance(mesh, ActorMesh) else placement_of(mesh).group


def _rank_of(proc: int) -> str:
    end = process_context.transport().ends.get(proc)
    return "which is no more" if end is None else f"rank {end.rank}"


def ask(handle: Any, path: Sequence[str], args: Any = (), kwargs: Any = None) -> Future[Any]:
    """Have the envoy perform a call on a handle; return a future of the result."""
    envoy: Any = mesh_controller(_ENVOY, Envoy).get()
    future: Future[Any] = envoy.do.call_one(
        Asker(process_context.transport().me, acting()), handle, tuple(path), tuple(args), dict(kwargs or {})
    )

    def result(_pending: Any) -> Any:
        try:
            return future.get()
        except DeviceMeshError as error:
            if isinstance(error.exception, MeshError):  # shows the remote error, not the relay's
                raise error.exception from None
            raise

    return future.read_as(result, ".".join(path))


class RelayedEndpoint:
    """An endpoint of actors of a mesh reached through an envoy, with the adverbs of `Endpoint`."""

    def __init__(self, mesh: ActorMesh[Any], name: str) -> None:
        self._mesh = mesh
        self._name = name

    def _ask(self, adverb: str, args: Any, kwargs: Any) -> Future[Any]:
        return ask(self._mesh, (self._name, adverb), args, kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call all actors of the mesh."""
        return self._ask("call", args, kwargs)

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the actor of a mesh of one."""
        return self._ask("call_one", args, kwargs)

    def choose(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call one actor of the mesh."""
        return self._ask("choose", args, kwargs)

    def scatter(self, arguments: Sequence[Any], **kwargs: Any) -> Future[Any]:
        """Call all actors, each with arguments of its own."""
        return self._ask("scatter", (list(arguments),), kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> list[Future[Any]]:
        """Call all actors; return their futures, in rank order."""
        line = self._mesh.flatten("rank")
        return [ask(line.slice(rank=i), (self._name, "call_one"), args, kwargs) for i in range(len(line))]

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Call all actors; waits until that has been sent, and no longer."""
        self._ask("broadcast", args, kwargs).get()

    def rref(self, *args: Any, **kwargs: Any) -> Any:
        """Call all actors and leave each result on its rank."""
        return self._ask("rref", args, kwargs).get()

    def __repr__(self) -> str:
        return f"<Endpoint {self._mesh._name}.{self._name} on {self._mesh.extent}, by an envoy>"


relay_by(ask, RelayedEndpoint)
