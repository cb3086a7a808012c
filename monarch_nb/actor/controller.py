"""Named singletons: one actor of a name in the whole mesh, whoever asks first spawns it."""

from __future__ import annotations

import secrets
from typing import Any, TypeVar, cast

from monarch_nb._client import session as sessions
from monarch_nb._post.pending import OneReply
from monarch_nb._shape import Extent, Shape
from monarch_nb._wire import codec
from monarch_nb._wire import message as wire
from monarch_nb.actor.actor_mesh import ActorMesh
from monarch_nb.actor.future import Future
from monarch_nb.actor.outcome import one_value
from monarch_nb.actor.proc_mesh import ProcMesh

T = TypeVar("T")

_PROC_NAME = "monarch_nb.controllers"


def get_or_spawn_controller(name: str, cls: type[T], *args: Any, **kwargs: Any) -> Future[T]:
    """Return the actor called `name`, spawned by whoever asks first. Works from programs, cells and actors alike.

    All such actors live in one process on the home host.

    Example:
        >>> registry = get_or_spawn_controller("registry", Registry).get()  # doctest: +SKIP
    """
    proc = _controller_proc()
    office = sessions.current().office
    proposed = secrets.randbits(63) | 1
    reply = OneReply(office, (proc,))
    ref = office.expect(reply)
    office.post(proc, wire.CALL, codec.encode((name, proposed)), ref=ref, name=b"singleton")

    def finish(pending: Any) -> T:
        actor_id = one_value(pending, f"get_or_spawn_controller({name!r})")
        shape = Shape.full(Extent([], []))
        mesh: ActorMesh[T] = ActorMesh(cls, name, actor_id, (proc,), shape)
        if actor_id == proposed:
            mesh._spawn(args, kwargs, ProcMesh("controllers", (proc,), shape))
        return cast("T", mesh)

    return Future(reply, finish, f"controller {name!r}")


def _controller_proc() -> int:
    session = sessions.current()
    answer = session.request("controller_proc", name=_PROC_NAME, spec=_spec())
    return int(answer)


def _spec() -> dict[str, Any]:
    from monarch_nb.actor.host_mesh import HostMesh

    return HostMesh((0,))._spec("controllers", Extent([], []), None, {}, None)
