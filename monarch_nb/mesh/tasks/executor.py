"""The ranks of a mesh as a `concurrent.futures.Executor`, for code that takes one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from concurrent.futures import Future as ConcurrentFuture
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_nb.exceptions import ActorError
from monarch_nb.mesh.tasks.pool import Task, TaskFunction, TaskPool
from monarch_nb.mesh.tasks.unread import say_unread

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

R = TypeVar("R")


class MeshExecutor(Executor):
    """An executor that runs functions on the main threads of ranks, one at a time on each.

    What a function raises is raised by `result()` as it was, caused by an `ActorError` that says on which
    rank and where.

    Example:
        >>> with mesh.executor() as pool:                              # doctest: +SKIP
        ...     for future in as_completed([pool.submit(f, x) for x in xs]):
        ...         print(future.result())
    """

    def __init__(self, mesh: Mesh, ranks: tuple[int, ...], *, retries: int = 2) -> None:
        self._pool = TaskPool(mesh, ranks, retries=retries)
        self._is_shut_down = False
        self._last: tuple[Callable[..., Any], TaskFunction] | None = None

    @property
    def num_ranks(self) -> int:
        """The number of ranks that run functions."""
        return self._pool.num_ranks

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> ConcurrentFuture[R]:
        """Schedule a function call on a rank; return a future of its result.

        Raises:
            CannotPickle: (a TypeError) if the function can't be sent. For arguments that can't be sent, the
                future raises the error.
            RuntimeError: after `shutdown`.
        """
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: _TaskFuture[R] = _TaskFuture()
        future._what = f"a task of {getattr(fn, '__name__', type(fn).__name__)}"
        self._pool.put(Task(self._encoded(fn), args, kwargs, future=future))
        return future

    def _encoded(self, function: Callable[..., Any]) -> TaskFunction:
        if self._last is None or self._last[0] is not function:
            self._last = function, TaskFunction.of(function)
        return self._last[1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting functions; see `concurrent.futures.Executor.shutdown`. The mesh keeps running."""
        self._is_shut_down = True
        if cancel_futures:
            self._pool.cancel(interrupt=False)
        self._pool.close()
        if wait:
            self._pool.join()


class _TaskFuture(ConcurrentFuture[R]):
    """A task's future whose error is what the function has raised. One that is dropped with an error that
    nobody has asked for says so."""

    _what = ""
    _is_read = False

    def set_exception(self, exception: BaseException | None) -> None:
        if isinstance(exception, ActorError) and exception.exception is not None:
            raised = exception.exception
            raised.__cause__ = exception
            exception = raised
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> R:
        __tracebackhide__ = True
        self._is_read = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._is_read = True
        return super().exception(timeout)

    def __del__(self) -> None:
        error = getattr(self, "_exception", None)  # the base class' method, which needs no lock
        if error is not None and not self._is_read:
            say_unread(self._what, [error.__cause__ if isinstance(error.__cause__, ActorError) else error])
