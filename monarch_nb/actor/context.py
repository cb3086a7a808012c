"""Where the running code stands: which actor, which message, which rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb._client import session as sessions
from monarch_nb._post import here
from monarch_nb._post.context import CallContext, call_context
from monarch_nb._protocol.healing import ActorStopped
from monarch_nb._runtime import log_names
from monarch_nb._shape import Extent, Point, Shape, decode_extent
from monarch_nb.actor import config

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh


@dataclass(frozen=True)
class CreatorInstance:
    """Who has spawned an actor: what is known of it elsewhere.

    Attributes:
        name: as it was spawned; "root" for a program or a cell.
        class_name: of its class, with the module; None at the root.
        rank: its place in the mesh that it was spawned on.
        proc_mesh: that mesh; None at the root.
        creator: who has spawned it; None at the root.
    """

    name: str
    class_name: str | None
    rank: Point
    proc_mesh: ProcMesh | None
    creator: CreatorInstance | None

    def __str__(self) -> str:
        return _full_name(self.creator, self.class_name, self.name, self.rank)


def _full_name(creator: CreatorInstance | None, class_name: str | None, name: str, rank: Point) -> str:
    """Return a name that no other instance of the mesh has at the time: who has spawned it, class, name, place."""
    if class_name is None:
        return f"<{name}>"
    where = ", ".join(f"{label!r}: {index}/{rank.extent[label]}" for label, index in rank.items())
    return f"{creator}.<{class_name} {name}{f'{{{where}}}' if where else ''}>"


class Instance:
    """The running actor; in a client or a cell, the root."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    @property
    def name(self) -> str:
        """The name it was spawned with; "root" at the root."""
        return str(self._runner.name) if self._runner is not None else "root"

    @property
    def class_name(self) -> str | None:
        """The name of its class, with the module; None at the root."""
        if self._runner is None or self._runner.mesh is None:
            return None
        cls = self._runner.mesh._class
        return f"{cls.__module__}.{cls.__qualname__}"

    @property
    def actor_id(self) -> int:
        """The number that its messages are addressed to; 0 at the root."""
        return int(self._runner.actor_id) if self._runner is not None else 0

    @property
    def rank(self) -> Point:
        """Its place in the mesh that it was spawned on."""
        if self._runner is None or self._runner.mesh is None:
            return Point(0, Extent([], []))
        mesh = self._runner.mesh
        shape: Shape = mesh._own_shape
        return shape.point(mesh._procs.index(here.office().me))

    @property
    def proc_mesh(self) -> ProcMesh:
        """The processes that it was spawned on; at the root, its own."""
        if self._runner is None or self._runner.proc_mesh is None:
            return self.proc
        found: ProcMesh = self._runner.proc_mesh
        return found

    @property
    def proc(self) -> ProcMesh:
        """The process it runs in, as a mesh of one."""
        from monarch_nb.actor.host_mesh import this_proc

        return this_proc()

    @property
    def creator(self) -> CreatorInstance | None:
        """Who has spawned it; None at the root."""
        found: CreatorInstance | None = self._runner.created_by if self._runner is not None else None
        return found

    def _as_creator(self) -> CreatorInstance:
        mesh = None if self._runner is None else self._runner.proc_mesh
        return CreatorInstance(self.name, self.class_name, self.rank, mesh, self.creator)

    def __repr__(self) -> str:
        """Return its full name, which tells it from all others: `<root>.<module.Trainer trainer{'gpus': 3/8}>`."""
        return _full_name(self.creator, self.class_name, self.name, self.rank)

    def stop(self, reason: str = "") -> None:
        """End this actor after the messages that have come, with what it has spawned."""
        runner = self._actor("stop")
        runner.host.end_actor(runner.actor_id, RuntimeError(reason) if reason else None)
        sessions.current().tell(ActorStopped(runner.actor_id, [here.office().me]))

    def abort(self, reason: str = "") -> None:
        """End this actor as failed, after the message that it is handling: its owner is asked to handle it."""
        self._actor("abort").abort(reason)

    def kill(self, reason: str = "") -> None:
        """End this actor as failed, as `abort` does. Its process, and the other actors in that, go on."""
        self._actor("kill").abort(reason)

    def _actor(self, what: str) -> Any:
        if self._runner is None:
            raise RuntimeError(f"there is no actor here to {what}")
        return self._runner


def creator_instance() -> CreatorInstance:
    """Describe the running actor, or the root, as the creator of what it spawns."""
    return Instance(call_context.get().actor)._as_creator()


def acting() -> int:
    """Return the id of the running actor; 0 if none runs."""
    actor = call_context.get().actor
    return 0 if actor is None else int(actor.actor_id)


def own_by_caller(mesh: Any) -> None:
    """Let what has just been spawned belong to the running actor, if there is one: it ends with that."""
    mesh._owner = call_context.get().actor
    if mesh._owner is not None:
        mesh._owner.owns(mesh)


def disown(mesh: Any) -> None:
    """Let what has just been spawned belong to nobody here."""
    if mesh._owner is not None:
        mesh._owner.disowns(mesh)
        mesh._owner = None


log_names.name_actors_by(lambda actor: str(Instance(actor)), lambda: config.prefix_python_logs_with_actor)


class Context:
    """What `context()` returns.

    Attributes:
        actor_instance: the running actor.
        message_rank: this rank's place in the slice that the current message was sent to.
    """

    def __init__(self, call: CallContext) -> None:
        self._call = call
        self.actor_instance = Instance(call.actor)

    @property
    def message_rank(self) -> Point:
        """This rank's place in the slice that the current message was sent to."""
        if self._call.src == 0 and not self._call.extent and here.rank is not None:
            return Point(here.rank.rank, decode_extent(here.rank.spec["extent"]))
        return Point(self._call.slot, decode_extent(self._call.extent))


def context() -> Context:
    """Return where the running code stands. Works in endpoints, in cells and in a client."""
    return Context(call_context.get())


def current_rank() -> Point:
    """Return this rank's place in the slice that the current message was sent to: `current_rank()["gpus"]`."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """Return the sizes of the slice that the current message was sent to."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """Return the name of the running actor."""
    return context().actor_instance.name


def shutdown_context() -> Any:
    """End this program's private mesh and its connection. The next `this_host()` starts anew."""
    from monarch_nb.actor.actor_mesh import _done
    from monarch_nb.actor.future import Future

    if here.rank is not None:
        raise RuntimeError("shutdown_context() is for programs that use a mesh, not for its ranks")
    if sessions._current is None:
        return _Nothing()
    office = sessions._current.office
    sessions.shutdown()
    return Future(_done(office), lambda _: None)


class _Nothing:
    """The future of having done nothing."""

    def get(self, timeout: float | None = None) -> None:
        """Return at once."""

    def __await__(self) -> Any:
        return iter(())
