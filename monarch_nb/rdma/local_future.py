"""A `Future` whose value a thread of this process sets: `.get()`, `await` and callbacks, without a
message.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from monarch_nb.actor.future import Future, wait_in_loop
from monarch_nb.exceptions import RankTimeout

T = TypeVar("T")
U = TypeVar("U")


class LocalFuture(Future[T]):
    """A future whose value this process sets itself.

    Example:
        >>> future = LocalFuture()
        >>> future.finish(3)
        >>> future.get()
        3
    """

    __slots__ = ("_callbacks", "_done", "_ended", "_lock")

    def __init__(self) -> None:
        self._done = False
        self._lock = threading.Lock()
        self._ended: threading.Event | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._value: T | None = None
        self._error: BaseException | None = None
        self._what = ""

    def finish(self, value: T | None, error: BaseException | None = None) -> None:
        """Complete this future with a value or an error. Call this once; any thread may."""
        with self._lock:
            self._value, self._error, self._done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
            if self._ended is not None:
                self._ended.set()
        for callback in callbacks:
            callback()

    @classmethod
    def of(cls, function: Callable[[], T]) -> LocalFuture[T]:
        """Return the future of a function that runs in a thread of its own, in the context of this one."""
        future: LocalFuture[T] = cls()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                future.finish(context.run(function))
            except BaseException as error:
                future.finish(None, error)

        threading.Thread(target=run, name="monarch_nb-rdma-work", daemon=True).start()
        return future

    @classmethod
    def done_with(cls, value: T) -> LocalFuture[T]:
        """Return a future that is complete, with a value."""
        future: LocalFuture[T] = cls()
        future.finish(value)
        return future

    def get(self, timeout: float | None = None) -> T:
        """Wait for the value.

        Args:
            timeout: seconds; None: no limit. The work continues after a time-out.

        Raises:
            RankTimeout: if `timeout` passed.
            Exception: the error of the work.
        """
        __tracebackhide__ = True
        if not self._done and not self._wait(timeout):
            raise RankTimeout(f"{self._what}: not over within {timeout:g} s; it goes on: .get() again")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _wait(self, timeout: float | None) -> bool:
        with self._lock:
            if self._done:
                return True
            if self._ended is None:
                self._ended = threading.Event()
        return self._wait_for(self._ended, timeout)

    def _wait_for(self, ended: threading.Event, timeout: float | None) -> bool:
        return ended.wait(timeout)

    def done(self) -> bool:
        """Return whether `get` would return at once."""
        return self._done

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, and return the error instead of raising it; None if there is none."""
        if not self._done and not self._wait(timeout):
            raise RankTimeout(f"{self._what}: not over within {timeout:g} s")
        return self._error

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback(self)` when the future is complete: at once if it is already, otherwise in the
        thread that completes it.
        """
        self._when_done(lambda: callback(self))

    def _when_done(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback()

    def then(self, function: Callable[[T], U]) -> Future[U]:
        """Return a future of `function(value)`; the function is called in the thread that completes this
        future.
        """
        other: LocalFuture[U] = LocalFuture()

        def pass_on() -> None:
            try:
                other.finish(function(self.get()))
            except BaseException as error:
                other.finish(None, error)

        self._when_done(pass_on)
        return other

    def __await__(self) -> Generator[Any, None, T]:
        __tracebackhide__ = True
        if not self._done:
            yield from wait_in_loop(self._when_done, self.cancel)
        return self.get()

    def cancel(self) -> None:
        """Do nothing: the work of a local future continues when no caller waits for it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'done' if self._done else 'pending'}>"
