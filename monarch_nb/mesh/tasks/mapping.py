"""A function over items: `mesh.map`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError
from concurrent.futures import Future as ConcurrentFuture
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch_nb.display.count_bar import Counted, show_count
from monarch_nb.mesh.tasks.pool import Task, TaskFunction, TaskPool

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

R = TypeVar("R")

MAX_AHEAD = 10_000
"""How many results of items without a length may wait to be read."""


class MapRun(Generic[R]):
    """A map on its way. Iterate over it for results; each can be had once.

    Example:
        >>> for loss in mesh.map(evaluate, paths):        # doctest: +SKIP
        ...     print(loss)
        >>> run = mesh.map(evaluate, paths)               # doctest: +SKIP
        >>> run.num_done, run.num_items                   # doctest: +SKIP
        (12, 100)
        >>> run.get()                                     # doctest: +SKIP
        [0.1, 0.2, ...]
    """

    def __init__(
        self, mesh: Mesh, function: Callable[..., R], items: Iterable[Any], ranks: tuple[int, ...], *,
        ordered: bool, retries: int, return_exceptions: bool, progress: bool,
    ) -> None:  # fmt: skip
        self.num_items = len(items) if isinstance(items, Sized) else None
        self.num_done = 0
        self._function = TaskFunction.of(function)
        self._items = enumerate(items)
        self._is_ordered = ordered
        self._returns_exceptions = return_exceptions
        self._handed: SimpleQueue[ConcurrentFuture[R] | None] = SimpleQueue()
        """What is to be read, in its order; None at the end."""
        self._num_handed = self._num_read = 0
        self._is_exhausted = self._is_over = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._pool = TaskPool(mesh, ranks, source=self._next_task, retries=retries)
        self._end_bar = (
            show_count(Counted(lambda: (self.num_done, self.num_items))) if progress else lambda: None
        )
        self._pool.wake()

    # --- in the pool's thread

    def _next_task(self) -> Task | None:
        if self._is_exhausted or (self.num_items is None and self._num_handed - self._num_read > MAX_AHEAD):
            return None
        try:
            number, item = next(self._items)
        except BaseException as error:  # the end, or what the user's generator raises
            self._error = None if isinstance(error, StopIteration) else error
            self._is_exhausted = True
            self._check_end()
            return None
        task = Task(self._function, (item,), label=f"item {number}")
        self._num_handed += 1
        if self._is_ordered:
            self._handed.put(task.future)
        task.future.add_done_callback(self._ended)
        return task

    def _ended(self, future: ConcurrentFuture[R]) -> None:
        with self._lock:
            self.num_done += 1
        if not self._is_ordered:
            self._handed.put(future)
        self._check_end()

    def _check_end(self) -> None:
        with self._lock:
            if (
                self._is_over
                or not self._is_exhausted
                or (not self._is_ordered and self.num_done < self._num_handed)
            ):
                return
            self._is_over = True
        self._handed.put(None)
        self._pool.close()

    # --- the reader

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        __tracebackhide__ = True
        try:
            future = self._handed.get()
            value: R | None = None if future is None else self._value_of(future)
        except BaseException:
            self.cancel()
            raise
        if future is None:
            self._handed.put(None)  # for whoever asks again
            self._end_bar()
            error, self._error = self._error, None
            raise error or StopIteration
        self._num_read += 1
        if self.num_items is None:
            self._pool.wake()
        return value  # type: ignore[return-value]

    def _value_of(self, future: Any) -> Any:
        __tracebackhide__ = True
        if not self._returns_exceptions:
            return future.result()
        error = future.exception()
        return future.result() if error is None else error

    def get(self) -> list[R]:
        """Wait for all results that haven't been read.

        Raises:
            ActorError: if the function raised, naming the item and the rank; what hasn't been done then
                isn't.
            SupervisionError: if an item has ended each rank that was at it.
            CannotPickle: (a TypeError) for an item that can't be sent.
        """
        __tracebackhide__ = True
        return list(self)

    def cancel(self) -> None:
        """Do no more: items that wait are dropped, what runs is interrupted."""
        self._is_exhausted = True
        if self._error is None:
            self._error = CancelledError(f"the map of {self._function.name} was given up")
        self._pool.close()
        self._pool.cancel()
        self._end_bar()
        self._check_end()

    def __repr__(self) -> str:
        of = "" if self.num_items is None else f" of {self.num_items}"
        return f"<MapRun of {self._function.name}: {self.num_done}{of} done>"
