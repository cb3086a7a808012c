"""Handles on a mesh whose controller is on another machine than this process: an envoy uses them for us.

Meshes are entered on the machine of their controller. Whoever has brought two meshes together was on the
machine of both controllers, and so can an actor be: the envoy, one for each mesh, in a process of its own
beside our controller. What goes through it takes the way that it would take anyhow, encrypted between
machines, and no key is handed out.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from monarch_nb.actor.actor_mesh import Actor, ActorMesh
from monarch_nb.actor.controller import mesh_controller
from monarch_nb.actor.endpoint import concurrent_endpoint
from monarch_nb.actor.envoy import relay_by
from monarch_nb.actor.future import Future
from monarch_nb.actor.handle import disown
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import DeviceMeshError, MeshError

_ENVOY = "monarch_nb.envoy"


class Envoy(Actor):
    """Does on the machine of our controller what we ask of handles on other meshes."""

    @concurrent_endpoint
    async def do(self, handle: Any, path: Sequence[str], args: Any, kwargs: Any) -> Any:
        """Call what `path` leads to from a handle; return its result, once it's there."""
        for name in path:
            handle = getattr(handle, name)
        result = handle(*args, **kwargs)
        if isinstance(result, ActorMesh | ProcMesh):
            disown(result)  # it belongs to whoever has asked for it
            return result
        return await result if inspect.isawaitable(result) else result


def ask(handle: Any, path: Sequence[str], args: Any = (), kwargs: Any = None) -> Future[Any]:
    """Have the envoy do something with a handle; a future of the result."""
    envoy: Any = mesh_controller(_ENVOY, Envoy).get()
    future: Future[Any] = envoy.do.call_one(handle, tuple(path), tuple(args), dict(kwargs or {}))

    def result(_pending: Any) -> Any:
        try:
            return future.get()
        except DeviceMeshError as error:
            if isinstance(error.exception, MeshError):  # what it has met there, not that it has met something
                raise error.exception from None
            raise

    return future.read_as(result, ".".join(path))


class RelayedEndpoint:
    """An endpoint of actors of such a mesh, with the adverbs of `Endpoint`."""

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
