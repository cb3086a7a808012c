"""Controllers: named singletons, one actor of a name in the whole mesh. The first program that asks for one
spawns it.
"""

from __future__ import annotations

import secrets
from typing import Any, TypeVar, cast

from monarch_nb._client import session as sessions
from monarch_nb._protocol.names import FindController
from monarch_nb._protocol.rank_spec import GroupSpec
from monarch_nb._shape import Extent, Shape
from monarch_nb.actor.actor_mesh import ActorMesh, check_class, start_actors
from monarch_nb.actor.future import Future
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.actor.placement import Placement
from monarch_nb.actor.proc_mesh import ProcMesh

T = TypeVar("T")


def get_or_spawn_controller(name: str, cls: type[T], *args: Any, **kwargs: Any) -> Future[T]:
    """Return the actor called `name`, spawned by the first program that asks. Works in programs, cells and
    actors.

    Controllers live in the program that uses the mesh: in a notebook, in the kernel. They end with it. In a
    named mesh that no program is connected to, they live in a process of their own.

    Raises:
        TypeError: if `cls` is no Actor, or the arguments don't fit its constructor.

    Example:
        >>> registry = get_or_spawn_controller("registry", Registry).get()  # doctest: +SKIP
    """
    return _controller(name, cls, args, kwargs, in_program=True)


def mesh_controller(name: str, cls: type[T], *args: Any, **kwargs: Any) -> Future[T]:
    """Return the actor called `name` as `get_or_spawn_controller` does; it lives as long as the mesh,
    independently of programs.
    """
    return _controller(name, cls, args, kwargs, in_program=False)


def _controller(
    name: str, cls: type[T], args: tuple[Any, ...], kwargs: dict[str, Any], *, in_program: bool
) -> Future[T]:
    check_class(cls, args, kwargs)
    session = sessions.current()
    reply = session.ask(FindController(name, secrets.randbits(63) | 1, in_program, _spec()))

    def finish(pending: Any) -> T:
        place = pending.read()
        proc, shape = place.proc, Shape.full(Extent([], []))
        mesh: ActorMesh[T] = ActorMesh(cls, name, place.actor_id, Placement((proc,), shape))
        if place.is_new:
            start_actors(mesh, ProcMesh(Placement((proc,), shape, "controllers", (0,))), args, kwargs)
        return cast("T", mesh)

    return Future(reply, finish, f"controller {name!r}")


def _spec() -> GroupSpec:
    return HostMesh((0,))._spec("controllers", Extent([], []), None, {})
