"""Names of actors and of their creators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from monarch_nb._runtime import log_names
from monarch_nb._shape import Extent, Point
from monarch_nb._transport import process_context
from monarch_nb._transport.context import call_context
from monarch_nb.actor import config
from monarch_nb.actor.handle import placement_of

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh


class CreatorInstance(msgspec.Struct, frozen=True):
    """The creator of an actor, as other processes see it.

    Attributes:
        name: name of its spawn; "root" for a program or a cell.
        class_name: name of its class, with the module; None at the root.
        rank: its place in the mesh that it was spawned on.
        proc_mesh: that mesh; None at the root.
        creator: the creator's own creator; None at the root.
    """

    name: str
    class_name: str | None
    rank: Point
    proc_mesh: ProcMesh | None
    creator: CreatorInstance | None

    def __str__(self) -> str:
        return full_name(self.creator, self.class_name, self.name, self.rank)


def full_name(creator: CreatorInstance | None, class_name: str | None, name: str, rank: Point) -> str:
    """Return a name that is unique in the mesh at any time: creator, class, name, place."""
    if class_name is None:
        return f"<{name}>"
    where = ", ".join(f"{label!r}: {index}/{rank.extent[label]}" for label, index in rank.items())
    return f"{creator}.<{class_name} {name}{f'{{{where}}}' if where else ''}>"


def name_of(runner: Any) -> str:
    """Return the name that an actor was spawned with; "root" at the root."""
    return str(runner.name) if runner is not None else "root"


def class_name_of(runner: Any) -> str | None:
    """Return the name of an actor's class, with the module; None at the root."""
    cls = None if runner is None else runner.cls
    return None if cls is None else f"{cls.__module__}.{cls.__qualname__}"


def point_of(runner: Any) -> Point:
    """Return an actor's place in the mesh that it was spawned on."""
    if runner is None or runner.mesh is None:
        return Point(0, Extent([], []))
    return placement_of(runner.mesh).point_of(process_context.transport().me)


def creator_of(runner: Any) -> CreatorInstance | None:
    """Return the actor that has spawned another; None at the root."""
    found: CreatorInstance | None = runner.created_by if runner is not None else None
    return found


def full_name_of(runner: Any) -> str:
    """Return an actor's full name, which tells it from all others: `<root>.<module.Trainer trainer{'gpus':
    3/8}>`.
    """
    return full_name(creator_of(runner), class_name_of(runner), name_of(runner), point_of(runner))


def creator_instance() -> CreatorInstance:
    """Describe the running actor, or the root, as the creator of what it spawns."""
    runner = call_context.get().actor
    mesh = None if runner is None else runner.proc_mesh
    return CreatorInstance(name_of(runner), class_name_of(runner), point_of(runner), mesh, creator_of(runner))


def acting() -> int:
    """Return the id of the running actor; 0 if none runs."""
    actor = call_context.get().actor
    return 0 if actor is None else int(actor.actor_id)


log_names.name_actors_by(full_name_of, lambda: config.prefix_python_logs_with_actor)
