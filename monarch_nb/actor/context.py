"""Where the running code stands: which actor, which message, which rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch_nb._client import session as sessions
from monarch_nb._post import here
from monarch_nb._post.context import CallContext, call_context
from monarch_nb._shape import Extent, Point, Shape, decode_extent

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh


class Instance:
    """The running actor; in a client or a cell, the root."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    @property
    def name(self) -> str:
        """The name it was spawned with; "client" at the root."""
        return str(self._runner.name) if self._runner is not None else "client"

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
    def proc(self) -> ProcMesh:
        """The process it runs in, as a mesh of one."""
        from monarch_nb.actor.host_mesh import this_proc

        return this_proc()

    @property
    def creator(self) -> tuple[int, int]:
        """Proc id and actor id of whoever spawned it (actor id 0: a client or a cell)."""
        return self._runner.creator if self._runner is not None else (here.office().me, 0)

    def stop(self, reason: str = "") -> None:
        """End this actor after the message that it is handling."""
        self._end(RuntimeError(reason) if reason else None)

    def abort(self, reason: str = "") -> None:
        """End this actor as failed: its owner is asked to handle it."""
        raise SystemExit(reason or f"{self.name} aborted itself")

    def kill(self, reason: str = "") -> None:
        """End the whole process, at once."""
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    def _end(self, error: BaseException | None) -> None:
        if self._runner is None:
            raise RuntimeError("there is no actor here to stop")
        self._runner.host.end_actor(self._runner.actor_id, error)


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
