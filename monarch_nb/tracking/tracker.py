"""`monarch_nb.track`: one run for all ranks. An actor on the first rank holds it, so that it outlives the
notebook; other ranks send their values to that actor.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monarch_nb._client import session as sessions
from monarch_nb._protocol.names import GetName, SetName
from monarch_nb._transport import process_context
from monarch_nb._wire import codec
from monarch_nb.actor import Actor, endpoint
from monarch_nb.exceptions import ActorError, MeshError, MeshUsageError, RankTimeout
from monarch_nb.mesh import current
from monarch_nb.tracking.backends import BACKENDS, Backend, Config, RunSpec
from monarch_nb.tracking.facts import facts_of
from monarch_nb.tracking.means import Means

if TYPE_CHECKING:
    import monarch_nb.mesh

LOG_S = 60.0
"""Time limit of a tracker for one step, including a first connection to its server."""
_CHECK = {
    "tensorboard": "folder= says where its files go on the first rank's machine",
    "wandb": (
        "Check WANDB_BASE_URL and WANDB_API_KEY in the ranks' environment; WANDB_MODE=offline there needs no "
        "server"
    ),
    "mlflow": "Check that its server runs, and that folder= or MLFLOW_TRACKING_URI on the ranks names it",
}
_NAME = "tracked run"
"""Name under which the mesh keeps the latest run, for ranks that are started later."""
_current: TrackedRun | None = None
"""The run of this process' mesh."""


class RunActor(Actor):
    """The actor that holds a run of a tracker. Created again when its rank is healed, it continues the
    same run, unless that was finished."""

    def __init__(self, spec: RunSpec, num_ranks: int) -> None:
        self._spec = spec
        self._name = f"{_NAME} {spec.key}"
        self._means = Means(num_ranks)
        self._is_finished = sessions.current().request(GetName(self._name)) is not None
        # Opened by the first call: that tells what a tracker refuses, and an actor that isn't made says less.
        self._backend: Backend | None = None

    @endpoint
    def where(self) -> str:
        """Return the location of the run for users, such as a URL or a folder."""
        return self._open_backend().where

    @endpoint
    def log(self, values: dict[str, float], step: int, rank: int | None) -> None:
        """Record the values of a rank, and the means that they complete. Without a rank, record the values
        under their own names.
        """
        backend = self._open_backend()
        if rank is None:
            backend.write(values, step)
            return
        backend.write({f"{name}/rank{rank}": value for name, value in values.items()}, step)
        self._means.num_ranks = process_context.this_rank().world_size
        for name, value in values.items():
            for each, mean in self._means.add(name, rank, step, value):
                backend.write({name: mean}, each)

    @endpoint
    def finish(self, failed: bool) -> None:
        """Record the remaining means, and end the run."""
        if self._is_finished:
            return
        backend = self._open_backend()
        for name, step, mean in self._means.rest():
            backend.write({name: mean}, step)
        backend.finish(failed=failed)
        self._backend, self._is_finished = None, True
        sessions.current().request(SetName(self._name, "finished"))

    def _open_backend(self) -> Backend:
        if self._is_finished:
            raise MeshUsageError("log: this run is finished: begin another one with monarch_nb.track()")
        if self._backend is None:
            self._backend = BACKENDS[self._spec.to](self._spec)
        return self._backend


class TrackedRun:
    """A handle on a run of a tracker. It can be sent in messages; each rank's `log` goes to the same run. As
    a context manager it ends the run with the block, as failed if the block raises.

    Attributes:
        where: folder, address, or name under which the run is found.

    Example:
        >>> run = monarch_nb.track(mesh, to="wandb", project="llama")    # doctest: +SKIP
        >>> run.log({"loss": 0.5}, step=3)                               # doctest: +SKIP
        >>> run.finish()                                                 # doctest: +SKIP
    """

    def __init__(self, actor: Any, where: str) -> None:
        self._actor = actor
        self.where = where

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Record scalars of a step. On a rank, `loss` is recorded at once as `loss/rank3` (in MLflow
        `loss.rank3`); the mean over ranks is recorded as `loss` when all ranks have reported that step, or at
        the end of the run. In a notebook or a program, values are recorded under their own names.

        Args:
            values: numbers, or tensors and arrays of one element.

        Raises:
            MeshUsageError: if a value isn't a number (the error names it), or the run is finished.
        """
        __tracebackhide__ = True
        if not isinstance(step, int) or isinstance(step, bool):
            raise MeshUsageError(f"log: a step is a whole number, not {step!r}")
        numbers = {str(name): _number(name, value) for name, value in values.items()}
        rank = process_context.rank.rank if process_context.rank is not None else None
        self._actor.log.call_one(numbers, step, rank).get(LOG_S)

    def finish(self, *, failed: bool = False) -> None:
        """End the run. When this returns, all values are recorded. May be called again.

        Args:
            failed: whether the tracker shows the run as failed (MLflow: FAILED; W&B: exit code 1).
        """
        self._actor.finish.call_one(failed).get(LOG_S)

    def __enter__(self) -> TrackedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
            return
        try:
            self.finish(failed=True)
        except MeshError as error:  # the error raised in the block is what the user must see
            print(
                f"the run at {self.where} couldn't be ended as failed: {error}\n"
                "After mesh.heal(): run.finish(failed=True)",
                file=sys.stderr,
            )

    def __repr__(self) -> str:
        return f"<TrackedRun at {self.where}>"


def track(
    mesh: monarch_nb.mesh.Mesh | None = None,
    *,
    to: str = "tensorboard",
    project: str = "",
    name: str = "",
    folder: str | os.PathLike[str] = "",
    config: Config | None = None,
) -> TrackedRun:
    """Start a run of a tracker that records scalars of all ranks of a mesh. The mesh's size, hosts,
    environment and git commit are recorded automatically.

    Ranks record by `run.log(...)` of the handle, or by `monarch_nb.tracking.log(...)`, which scripts of
    `%mesh run` can import, too, and which works on ranks that were healed or added since.

    Args:
        mesh: the mesh; by default the current one.
        to: `tensorboard`, `wandb` (one run, in a group that is called like the mesh; offline with
            WANDB_MODE=offline in the ranks' environment), or `mlflow`.
        project: the project, in MLflow the experiment; by default the mesh's name.
        name: the name of the run; by default the mesh's name and the time.
        folder: the folder of the run on the first rank's machine; for MLflow the address of its store.
        config: numbers and texts that are recorded once, such as hyperparameters.

    Raises:
        MeshUsageError: if the tracker is unknown, or isn't installed in the ranks' environment; on a rank.
        MeshError: if the tracker refuses the run, or its server doesn't answer.

    Example:
        >>> run = monarch_nb.track(to="tensorboard", config={"lr": 0.1})    # doctest: +SKIP
        >>> mesh.push({"run": run})                                         # doctest: +SKIP
        >>> mesh.run("run.log({'loss': loss}, step=3)")                     # doctest: +SKIP
    """
    if process_context.rank is not None or isinstance(mesh, str):
        raise MeshUsageError(
            'track begins a run, once, in the notebook: monarch_nb.track(to="tensorboard"). Ranks record in '
            "it: from monarch_nb.tracking import log; log({'loss': loss}, step)"
        )
    if to not in BACKENDS:
        raise MeshUsageError(f"track: to is one of {', '.join(BACKENDS)}; not {to!r}")
    mesh = mesh or current()
    if mesh is None:
        raise MeshUsageError("track needs a mesh: %mesh start, or monarch_nb.start()")
    key = secrets.token_hex(4)
    chosen = name or f"{mesh.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    place = os.fspath(folder)
    place = place if not place or "://" in place else os.path.abspath(place)
    spec = RunSpec(
        to, chosen, project or mesh.name, key, place, mesh.name, dict(config or {}), facts_of(mesh)
    )
    actor = mesh.part([0]).spawn(f"track-{key}", RunActor, spec, len(mesh))
    run = TrackedRun(actor, _begun(actor, to))
    mesh.execute(_adopt, run).get(LOG_S)
    return run


def _begun(actor: Any, to: str) -> str:
    """Start the actor's run; return the run's location for users."""
    __tracebackhide__ = True
    try:
        return str(actor.where.call_one().get(LOG_S))
    except RankTimeout:
        actor.stop()
        raise RankTimeout(f"track: {to} hasn't begun a run within {LOG_S:g} s: {_CHECK[to]}") from None
    except ActorError as error:
        actor.stop()
        if isinstance(error.exception, MeshUsageError):  # it isn't installed
            raise error.exception from None
        first = error.failures[0]
        raise MeshError(f"track: {to} refuses a run: {first.type}: {first.message}. {_CHECK[to]}") from error


def log(values: Mapping[str, Any], step: int) -> None:
    """Record scalars of this rank in the run that `monarch_nb.track` started last.

    Raises:
        MeshUsageError: as of `TrackedRun.log`; or if no run was started.
    """
    __tracebackhide__ = True
    run = _current or _begun_before()
    if run is None:
        raise MeshUsageError("log: no run has begun on this mesh: monarch_nb.track(mesh) in the notebook")
    run.log(values, step)


def _adopt(run: TrackedRun) -> None:
    """Set a run as this rank's current run. The first rank stores it in the mesh, too."""
    global _current
    _current = run
    if process_context.this_rank().rank == 0:
        kept = codec.to_bytes(codec.encode(run)).hex()
        sessions.current().request(SetName(_NAME, kept))


def _begun_before() -> TrackedRun | None:
    """Set the run that was started before this rank as its current run; return it, or None."""
    global _current
    kept = sessions.current().request(GetName(_NAME)) if process_context.rank is not None else None
    _current = codec.from_bytes(bytes.fromhex(kept)) if kept else None
    return _current


def _number(name: object, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise MeshUsageError(
            f"log: {name} is a {type(value).__name__}, not a number (or a tensor of one element)"
        ) from None
