"""The context of the running code: its actor, its message and its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch_nb._client import session as sessions
from monarch_nb._protocol.healing import ActorStopped
from monarch_nb._shape import Point, decode_extent
from monarch_nb._transport import process_context
from monarch_nb._transport.context import CallContext, call_context
from monarch_nb.actor.actor_mesh import done_reply
from monarch_nb.actor.future import Future
from monarch_nb.actor.host_mesh import this_proc
from monarch_nb.actor.ownership import (
    CreatorInstance,
    class_name_of,
    creator_of,
    full_name_of,
    name_of,
    point_of,
)

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh


class Instance:
    """The running actor; in a client or a cell, the root instance."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    @property
    def name(self) -> str:
        """The name it was spawned with; "root" at the root."""
        return name_of(self._runner)

    @property
    def class_name(self) -> str | None:
        """The name of its class, with the module; None at the root."""
        return class_name_of(self._runner)

    @property
    def actor_id(self) -> int:
        """The number that its messages are addressed to; 0 at the root."""
        return int(self._runner.actor_id) if self._runner is not None else 0

    @property
    def rank(self) -> Point:
        """Its place in the mesh that it was spawned on."""
        return point_of(self._runner)

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
        return this_proc()

    @property
    def creator(self) -> CreatorInstance | None:
        """The actor that has spawned this one; None at the root."""
        return creator_of(self._runner)

    def __repr__(self) -> str:
        """Return its full name, which tells it from all others: `<root>.<module.Trainer trainer{'gpus':
        3/8}>`.
        """
        return full_name_of(self._runner)

    def stop(self, reason: str = "") -> None:
        """End this actor after the messages that have come, with what it has spawned."""
        runner = self._actor("stop")
        runner.host.end_actor(runner.actor_id, RuntimeError(reason) if reason else None)
        sessions.current().tell(ActorStopped(runner.actor_id, [process_context.transport().me]))

    def abort(self, reason: str = "") -> None:
        """End this actor as failed, after the message that it is handling: its owner is asked to handle
        it.
        """
        self._actor("abort").abort(reason)

    def kill(self, reason: str = "") -> None:
        """End this actor as failed, as `abort` does. Its process, and the other actors in that, go on."""
        self._actor("kill").abort(reason)

    def _actor(self, what: str) -> Any:
        if self._runner is None:
            raise RuntimeError(f"there is no actor here to {what}")
        return self._runner


class Context:
    """The context of the running code, as `context()` returns it.

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
        if self._call.src == 0 and not self._call.extent and process_context.rank is not None:
            return Point(process_context.rank.rank, decode_extent(process_context.rank.extent))
        return Point(self._call.slot, decode_extent(self._call.extent))


def context() -> Context:
    """Return the context of the running code. Works in endpoints, in cells and in a client."""
    return Context(call_context.get())


def current_rank() -> Point:
    """Return this rank's place in the slice that the current message was sent to:
    `current_rank()["gpus"]`.
    """
    return context().message_rank


def current_size() -> dict[str, int]:
    """Return the sizes of the slice that the current message was sent to."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """Return the name of the running actor."""
    return context().actor_instance.name


def shutdown_context() -> Any:
    """End this program's own mesh and its connection. The next `this_host()` starts a new mesh."""
    if process_context.rank is not None:
        raise RuntimeError("shutdown_context() is for programs that use a mesh, not for its ranks")
    session = sessions.in_use()
    if session is None:
        return _Nothing()
    sessions.shutdown()
    return Future(done_reply(session.transport), lambda _: None)


class _Nothing:
    """A future that is already complete, without a value."""

    def get(self, timeout: float | None = None) -> None:
        """Return at once."""

    def __await__(self) -> Any:
        return iter(())
