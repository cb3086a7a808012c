"""Maps a function over items: `mesh.map`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError
from concurrent.futures import Future as ConcurrentFuture
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch_nb._display.count_bar import Counted, show_count
from monarch_nb._tracebacks import ShowsItself, shown_frames
from monarch_nb.exceptions import MeshError
from monarch_nb.mesh.tasks.pool import Task, TaskFunction, TaskPool
from monarch_nb.mesh.tasks.unread import say_unread

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

R = TypeVar("R")

_STEP_S = 1.0
MAX_AHEAD = 10_000
"""How many results of items without a length may wait to be read."""


class MapRun(Generic[R]):
    """A map on its way. Iterate over it for results; each can be had once.

    If nobody reads it, it runs to its end, and says on stderr if items have failed. One that is dropped half
    read (`break` in a loop) is given up.

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
        self._returns_exceptions = return_exceptions
        self._work: _MapWork[R] = _MapWork(mesh, function, items, ranks, ordered=ordered, retries=retries)
        self._work.start_tasks(progress=progress)

    @property
    def num_items(self) -> int | None:
        """The number of items; None if it isn't known, as of a generator."""
        return self._work.num_items

    @property
    def num_done(self) -> int:
        """The number of completed items, including failed ones."""
        return self._work.num_done

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        __tracebackhide__ = True
        try:
            future = self._work.next_handed()
            value: R | None = None if future is None else self._value_of(future)
        except BaseException:
            self.cancel()
            raise
        if future is None:
            raise self._work.take_error() or StopIteration
        self._work.was_read()
        return value  # type: ignore[return-value]

    def _value_of(self, future: Any) -> Any:
        __tracebackhide__ = True
        error = _error_of(future)
        if error is None:
            return future.result()
        if self._returns_exceptions:
            return error
        raise error  # raised here, not by the future: the user sees no frames of the future's module

    def get(self) -> list[R]:
        """Wait for all results that haven't been read yet, and return them.

        Raises:
            ActorError: if the function raised; the error names the item and the rank. Items that haven't
                started are dropped.
            SupervisionError: if each rank that processed an item has died.
            CannotPickle: (a TypeError) for an item that can't be sent.
        """
        __tracebackhide__ = True
        return list(self)

    def cancel(self) -> None:
        """Cancel the map: waiting items are dropped, running ones are interrupted."""
        self._work.cancel()

    def __repr__(self) -> str:
        work = self._work
        of = "" if work.num_items is None else f" of {work.num_items}"
        failed = f", {work.num_failed} failed" if work.num_failed else ""
        given_up = ", given up" if work.is_given_up else ""
        return f"<MapRun of {work.name}: {work.num_done}{of} done{failed}{given_up}>"

    def __del__(self) -> None:
        work = getattr(self, "_work", None)  # missing if the constructor has raised
        if work is not None:
            with suppress(MeshError):  # the mesh may have ended
                work.abandon()


class _GivenUp(ShowsItself, CancelledError):
    """A map was cancelled, and is read."""

    _shown_as = "CancelledError"


class _MapWork(Generic[R]):
    """The work of one map: hands items to the pool and results to the reader. It holds no reference to the
    reader, so that a reader that is dropped goes at once.
    """

    def __init__(
        self, mesh: Mesh, function: Callable[..., R], items: Iterable[Any], ranks: tuple[int, ...], *,
        ordered: bool, retries: int,
    ) -> None:  # fmt: skip
        self.num_items = len(items) if isinstance(items, Sized) else None
        self.num_done = self.num_failed = 0
        self._function = TaskFunction.of(function)
        self._items = enumerate(items)
        self.is_given_up = False
        self._is_ordered = ordered
        self._handed: SimpleQueue[_Item[R] | None] = SimpleQueue()
        """Results to be read, in order; None at the end."""
        self._num_handed = self._num_read = 0
        self._is_exhausted = self._is_over = self._is_abandoned = False
        self._error: BaseException | None = None
        self._failed: dict[_Item[R], None] = {}
        """Failed items that nobody has read."""
        self._context = contextvars.copy_context()
        # Reentrant: garbage collection, and with it `MapRun.__del__`, may come while it's held.
        self._lock = threading.RLock()
        self._pool = TaskPool(mesh, ranks, source=self._next_task, retries=retries)
        self._end_bar: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """The function's name."""
        return self._function.name

    def start_tasks(self, *, progress: bool) -> None:
        """Start the tasks, with or without a progress bar in a notebook."""
        if progress:
            self._end_bar = show_count(Counted(lambda: (self.num_done, self.num_items)))
        self._pool.wake()

    # --- in the pool's thread

    def _next_task(self) -> Task | None:
        if self._is_exhausted or self._is_far_ahead():
            return None
        try:
            number, item = next(self._items)
        except BaseException as error:  # the end, or an error of the user's generator
            if not isinstance(error, StopIteration):
                self._error = error.with_traceback(shown_frames(error.__traceback__))
            self._is_exhausted = True
            self._check_end()
            return None
        future: _Item[R] = _Item()
        self._num_handed += 1
        if self._is_ordered:
            self._handed.put(future)
        future.add_done_callback(self._ended)
        return Task(self._function, (item,), label=f"item {number}", future=future)

    def _is_far_ahead(self) -> bool:
        unread = self._num_handed - self._num_read
        return self.num_items is None and not self._is_abandoned and unread > MAX_AHEAD

    def _ended(self, future: Any) -> None:
        has_failed = not future.cancelled() and future.exception() is not None
        with self._lock:
            self.num_done += 1
            self.num_failed += has_failed
            if has_failed and not future.is_read:
                self._failed[future] = None
        if not self._is_ordered:
            self._handed.put(future)
        self._check_end()

    def _check_end(self) -> None:
        with self._lock:
            num_left = 0 if self._is_ordered and not self._is_abandoned else self._num_handed - self.num_done
            if self._is_over or not self._is_exhausted or num_left:
                return
            self._is_over = True
        self._handed.put(None)
        self._pool.close()
        if self._is_abandoned:
            self._say_failed()

    # --- the reader

    def next_handed(self) -> _Item[R] | None:
        """Wait for the next item to read, and return it; None at the end."""
        future = self._handed.get()
        if future is None:
            self._handed.put(None)  # for a further read
            self._end_bar()
        else:
            with self._lock:
                future.is_read = True
                self._failed.pop(future, None)
        return future

    def take_error(self) -> BaseException | None:
        """Return the error of iterating over the items, once; None if there is none."""
        error, self._error = self._error, None
        return error

    def was_read(self) -> None:
        """Record that the reader has taken a result, so that the pool may start another item."""
        self._num_read += 1
        if self.num_items is None:
            self._pool.wake()

    def cancel(self) -> None:
        """Cancel the map."""
        self._is_exhausted = True
        self.is_given_up = True
        if self._error is None:
            self._error = _GivenUp(f"the map of {self.name} was cancelled")
        self._pool.close()
        self._pool.cancel()
        self._end_bar()
        self._check_end()

    def abandon(self) -> None:
        """Handle the loss of the reader: cancel the rest if some results were read, otherwise let all items
        run.
        """
        with self._lock:
            self._is_abandoned = True
            is_done = self._is_exhausted and self.num_done >= self._num_handed
            self._is_over = self._is_over and is_done
        if is_done:
            self._say_failed()
        elif self._num_read:
            self.cancel()
        else:
            self._pool.wake()  # the pool may have waited for a reader

    def _say_failed(self) -> None:
        failed, self._failed = list(self._failed), {}
        error = self.take_error()
        errors = [*filter(None, (future.exception() for future in failed)), *([error] if error else [])]
        if errors and not isinstance(error, CancelledError):
            self._context.run(say_unread, f"the map of {self.name}", errors)


def _error_of(future: Any) -> BaseException | None:
    """Wait for a future and return its error, if any. In steps: Python loses a Ctrl-C that comes just before
    a wait without a limit begins.
    """
    while True:
        with suppress(TimeoutError):
            return future.exception(_STEP_S)  # type: ignore[no-any-return]


class _Item(ConcurrentFuture[R]):
    """The result of an item."""

    is_read = False
