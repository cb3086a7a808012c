"""Hands tasks to ranks: one at a time to each, the next when it is done, so that no rank waits while there
are tasks.

A thread of its own hands out; answers wake it. What a rank had when it died is given to another one first of
all, up to `retries` times: it may be the task that kills.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future as ConcurrentFuture
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from monarch_nb._rank.task import FunctionMissing, TaskCall
from monarch_nb._wire import codec
from monarch_nb._wire.segment import SharedMemoryError
from monarch_nb.actor.future import Future
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import ActorError, DeviceMeshError, MeshEnded, SupervisionError

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

LOOK_S = 0.5
"""Interval at which dead ranks are checked for healing, while there are tasks for them."""


class TaskFunction(msgspec.Struct, frozen=True):
    """A function as ranks are sent it: encoded once."""

    name: str
    digest: bytes
    encoded: bytes

    @classmethod
    def of(cls, function: Callable[..., Any]) -> TaskFunction:
        """Encode a function for sending to ranks.

        Raises:
            CannotPickle: if it can't be sent; the error names the part that can't.
        """
        name = str(getattr(function, "__name__", type(function).__name__))
        encoded = codec.to_bytes(codec.encode(function, name))
        return cls(name, hashlib.sha256(encoded).digest(), encoded)


@dataclass(eq=False)
class Task:
    """One call of a function.

    Attributes:
        label: what errors call it: `item 3`.
        ends: ranks that have died while they were at it.
    """

    function: TaskFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    label: str = "a task"
    future: ConcurrentFuture[Any] = field(default_factory=ConcurrentFuture)
    ends: list[int] = field(default_factory=list)


class TaskPool:
    """The ranks that take tasks, and the tasks that wait.

    Args:
        source: asked for the next task when a rank is free and none waits; None: there's none now.
        retries: how often a task is given to another rank when one has died at it.
    """

    def __init__(
        self,
        mesh: Mesh,
        ranks: tuple[int, ...],
        *,
        source: Callable[[], Task | None] = lambda: None,
        retries: int = 2,
    ) -> None:
        self._mesh = mesh
        self._parts: dict[int, ProcMesh] = {rank: mesh.part([rank]) for rank in ranks}
        self._source = source
        self._retries = retries
        self._waiting: deque[Task] = deque()
        self._running: dict[int, tuple[Task, Future[Any]]] = {}
        self._known: dict[int, set[bytes]] = {rank: set() for rank in ranks}
        """Functions that ranks have."""
        self._events: SimpleQueue[int | None] = SimpleQueue()
        """Ranks that have answered; None: another event."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def num_ranks(self) -> int:
        """The number of ranks that take tasks."""
        return len(self._parts)

    def put(self, task: Task) -> None:
        """Add a task to the queue."""
        self._waiting.append(task)
        self.wake()

    def wake(self) -> None:
        """Make the pool look for tasks."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="monarch_nb-tasks", daemon=True)
                self._thread.start()
        self._events.put(None)

    def cancel(self, *, interrupt: bool = True) -> None:
        """Cancel waiting tasks, and interrupt running ones."""
        while self._waiting:
            with suppress(IndexError):
                self._waiting.popleft().future.cancel()
        if interrupt:
            for _, call in list(self._running.values()):
                call.interrupt()

    def close(self) -> None:
        """Make the pool end when all tasks are done."""
        self._closing = True
        if self._thread is not None:
            self._events.put(None)

    def join(self) -> None:
        """Wait until the pool has ended."""
        if self._thread is not None:
            self._thread.join()

    # --- in the pool's thread

    def _serve(self) -> None:
        while not (self._closing and not self._waiting and not self._running):
            self._hand_out()
            try:
                rank = self._events.get(timeout=LOOK_S if self._waiting else None)
            except Empty:
                continue
            if rank is not None:
                self._take_answer(rank)

    def _hand_out(self) -> None:
        """Send a task to each free rank, as long as tasks are left."""
        for rank in self._free():
            task = self._next()
            if task is None:
                return
            self._give(rank, task)
        if self._waiting and not self._running and not self._living():
            self._fail_all(
                SupervisionError(
                    "no rank is left to run the task; %mesh heal (or mesh.heal()), then submit it again"
                )
            )

    def _living(self) -> set[int]:
        return set(self._mesh.living_ranks())

    def _free(self) -> Iterator[int]:
        living = self._living()
        return iter([rank for rank in self._parts if rank not in self._running and rank in living])

    def _next(self) -> Task | None:
        while self._waiting:
            task = self._waiting.popleft()
            if task.future.running() or task.future.set_running_or_notify_cancel():
                return task
        found = None if self._closing else self._source()
        return found if found is not None and found.future.set_running_or_notify_cancel() else None

    def _give(self, rank: int, task: Task) -> None:
        function = task.function
        has_it = function.digest in self._known[rank]
        self._known[rank].add(function.digest)
        call = TaskCall(function.digest, b"" if has_it else function.encoded)
        try:
            future = self._parts[rank].execute(call, *task.args, **task.kwargs)
        except SupervisionError as error:  # the rank has just died, or the mesh has ended
            self._died(rank, task, error)
        except Exception as error:  # the task can't be sent
            _settle(task, error=_unsendable(error, task))
            self._events.put(None)  # the rank is still free
        else:
            self._running[rank] = task, future
            future.add_done_callback(lambda _: self._events.put(rank))

    def _take_answer(self, rank: int) -> None:
        """Take a rank's answer, and send the rank its next task before the answer is read."""
        task, call = self._running.pop(rank)
        self._hand_out()
        try:
            value = call.get().item()
        except SupervisionError as error:
            self._died(rank, task, error)
        except ActorError as error:
            if isinstance(error.exception, FunctionMissing):
                self._known[rank].clear()
                self._waiting.appendleft(task)
            else:
                _settle(task, error=_of_task(error, task, rank))
        except codec.CannotUnpickle as error:
            found = codec.CannotUnpickle(f"{task.function.name}, {task.label}", error.reason)
            _settle(task, error=found.with_traceback(error.__traceback__))
        except BaseException as error:
            _settle(task, error=error)
        else:
            _settle(task, value)

    def _died(self, rank: int, task: Task, error: SupervisionError) -> None:
        self._known[rank].clear()
        task.ends.append(rank)
        if isinstance(error, MeshEnded):
            _settle(task, error=error)
            self._fail_all(error)
        elif len(task.ends) > self._retries:
            _settle(task, error=_of_task(error, task, rank))
        else:
            self._waiting.appendleft(task)
        self._events.put(None)

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            _settle(self._waiting.popleft(), error=error)
        self._closing = self._closing or isinstance(error, MeshEnded)


def _of_task(error: DeviceMeshError, task: Task, rank: int) -> DeviceMeshError:
    """Return the error of a call on one rank, described as that of a task on a rank of the mesh."""
    failures = [replace(failure, ranks=(rank,), first=False) for failure in error.failures]
    what = f"{task.function.name}, {task.label}: "
    if isinstance(error, SupervisionError):
        cause = f"the rank that ran it has died, {len(task.ends)} times in total"
        return SupervisionError(what + cause, failures)
    return type(error)(f"{what}failed on rank {rank}", failures)


def _unsendable(error: Exception, task: Task) -> Exception:
    """Return the error of a task that can't be sent, as one that names the item or the argument."""
    where = f"{task.function.name}, {task.label}"
    if isinstance(error, SharedMemoryError):
        return SharedMemoryError(f"{where}: {error}")
    if not isinstance(error, codec.CannotPickle):
        return error
    values = {**{str(number): value for number, value in enumerate(task.args, 1)}, **task.kwargs}
    is_alone = len(values) == 1
    return codec.name_culprit(
        error, {where if is_alone else f"{where}, argument {key}": value for key, value in values.items()}
    )


def _settle(task: Task, value: Any = None, error: BaseException | None = None) -> None:
    with suppress(InvalidStateError):  # the task was given up meanwhile
        if error is not None:
            task.future.set_exception(error)
        else:
            task.future.set_result(value)
