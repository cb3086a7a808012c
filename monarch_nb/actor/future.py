"""The future of an answer. It works the same in a script, a notebook cell, an `await`, and inside an
endpoint.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from monarch_nb._client import kernel, waiting
from monarch_nb._client import session as sessions
from monarch_nb._client.kernel import KernelShutDown
from monarch_nb._tracebacks import BadType
from monarch_nb._transport.pending import OneReply, Pending
from monarch_nb.actor.awaited import Awaited, Waiter
from monarch_nb.actor.interrupt import interrupt_and_raise, send_interrupts, shut_down
from monarch_nb.exceptions import RankTimeout

T = TypeVar("T")
U = TypeVar("U")

HEARTBEAT_S = 0.2
_making = threading.Lock()
"""Held while a future's `Awaited` is created."""


class Future(Generic[T]):
    """The answer to a call.

    The thread that calls `get` reads the socket itself, so nothing is handed over between threads. A time-out
    doesn't consume the future: ask again. `concurrent.futures.as_completed` and `wait` take it, also beside
    futures of other executors.

    Example:
        >>> future = counter.increment.call_one()  # doctest: +SKIP
        >>> future.get(timeout=5)                  # doctest: +SKIP
        1
        >>> await future                           # doctest: +SKIP
        1
    """

    __slots__ = ("__weakref__", "_awaited", "_error", "_finish", "_pending", "_value", "_what")

    def __init__(
        self, pending: Pending, finish: Callable[[Any], T], what: str = "", is_sole_reader: bool = False
    ) -> None:
        self._pending = pending
        self._finish: Callable[[Any], T] | None = finish
        self._what = what
        self._value: T | None = None
        self._error: BaseException | None = None
        if not is_sole_reader:
            pending.asker = weakref.ref(self)

    def get(self, timeout: float | None = None) -> T:
        """Wait for the value.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            RankTimeout: if `timeout` passed; the future can be waited for again.
            ActorError: if the other side raised.
            SupervisionError: if the other side died.
            KernelShutDown: (a KeyboardInterrupt) if this kernel is being shut down; the call goes on.
        """
        __tracebackhide__ = True
        if timeout is not None and not hasattr(timeout, "__float__"):
            raise BadType(f"get: timeout must be a number of seconds or None, not {timeout!r}")
        pending = self._pending
        if not pending.ready:
            try:
                deadline = None if timeout is None else time.monotonic() + timeout
                in_time = waiting.wait(pending, deadline)
            except KernelShutDown:
                raise shut_down(pending, self._what) from None
            except KeyboardInterrupt:
                interrupt_and_raise(pending, self._what)
            if not in_time:
                raise RankTimeout(
                    f"no answer{self._to_what()} within {timeout:g} s; it goes on: .get() again, or "
                    "stop the mesh"
                )
        if self._finish is not None:
            if pending.transport.owed:
                pending.transport.catch_up()
            self._settle()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _to_what(self) -> str:
        return f" to {self._what}" if self._what else ""

    def _settle(self) -> None:
        __tracebackhide__ = True
        finish = self._finish
        if finish is None:
            return
        try:
            if self._pending.fault is not None:
                self._pending.check_fault()
            self._value = finish(self._pending)
        except BaseException as error:
            self._error = error
            self._pending.transport.unread.pop(id(self._pending), None)  # the answer was read
        self._finish = None

    def result(self, timeout: float | None = None) -> T:
        """Return the value, as `get` does."""
        __tracebackhide__ = True
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error instead of raising it; None if there is a value."""
        try:
            self.get(timeout)
        except RankTimeout:
            if not self._pending.ready:
                raise
        except Exception:
            return self._error
        return self._error

    def done(self) -> bool:
        """Say whether `get` would return at once."""
        return self._pending.ready

    def running(self) -> bool:
        """Say whether the answer isn't there yet."""
        return not self.done()

    def cancelled(self) -> bool:
        """Say that it isn't cancelled: a call can be interrupted, and then has failed."""
        return False

    def interrupt(self) -> None:
        """Interrupt the ranks that still work on it, as Ctrl-C during a wait does. Doesn't wait for them."""
        if not self._pending.ready:
            _interrupt(self._pending)

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call `callback(self)` once done: at once if it is, else in the thread that receives the answer."""
        context = contextvars.copy_context()
        self._pending.when_ready(lambda: context.run(callback, self))

    # --- attributes that `concurrent.futures` uses

    @property
    def _condition(self) -> threading.Condition:
        return self._be_awaited().condition

    @property
    def _waiters(self) -> list[Waiter]:
        return self._be_awaited().waiters

    @property
    def _state(self) -> str:
        return self._be_awaited().state

    def _be_awaited(self) -> Awaited:
        with _making:
            found: Awaited | None = getattr(self, "_awaited", None)
            if found is not None:
                return found
            self._awaited = found = Awaited()
        self.add_done_callback(found.finish)
        return found

    def __await__(self) -> Generator[Any, None, T]:
        __tracebackhide__ = True
        if not self._pending.ready:
            yield from wait_in_loop(self._pending.when_ready, self._cancelled)
        return self.get()

    def _cancelled(self) -> None:
        """Handle a cancelled wait: interrupt the ranks if the notebook's whole cell is cancelled, that is, if
        the user has pressed Ctrl-C.
        """
        notebook = sessions.of_transport(self._pending.transport).notebook
        if notebook is not None and notebook.is_interrupted():
            kernel.when_meant(lambda: _interrupt(self._pending))

    def then(self, function: Callable[[T], U]) -> Future[U]:
        """Return a future of `function` of the value; the function is called when that future is read."""
        other = Future(self._pending, lambda _pending: function(self.get()), self._what)
        # the other one keeps a reference, so that either may be dropped
        self._pending.asker = weakref.ref(self)
        return other

    def drop(self) -> None:
        """Drop this future: its failure is not reported."""
        self._pending.asker = None
        if isinstance(self._pending, OneReply):
            self._pending.sole_reader = None
        self._pending.transport.unread.pop(id(self._pending), None)  # the answer may have come already

    def at_work(self) -> tuple[int, ...]:
        """Return the proc ids of the processes that haven't answered."""
        return self._pending.at_work()

    def read_as(self, finish: Callable[[Any], U], what: str) -> Future[U]:
        """Return a future of the same answer, whose value `finish` makes.

        Args:
            finish: takes the pending; called when the value is asked for.
            what: what was called.
        """
        return Future(self._pending, finish, what)

    def to_concurrent(self) -> concurrent.futures.Future[T]:
        """Return a `concurrent.futures.Future` for code that wants one."""
        other: concurrent.futures.Future[T] = concurrent.futures.Future()

        def pass_on(future: Future[T]) -> None:
            error = future.exception()
            if error is not None:
                other.set_exception(error)
            else:
                other.set_result(future.get())

        self.add_done_callback(pass_on)
        return other

    def __repr__(self) -> str:
        return f"<Future{self._to_what()}: {'done' if self.done() else 'pending'}>"


def _interrupt(pending: Pending) -> None:
    send_interrupts(pending)


def sent(future: Future[T], send: Callable[[], object]) -> Future[T]:
    """Send the call of a future, and return the future. It's made before, since the answer may come while
    `send` still runs: an error that nobody can read is reported only if the future was known by then.
    """
    try:
        send()
    except KeyboardInterrupt:  # the call may be out, and the caller gets no future to interrupt it by
        future.interrupt()
        raise
    return future


def wait_in_loop(
    when_ready: Callable[[Callable[[], None]], None], cancelled: Callable[[], None]
) -> Generator[Any, None, None]:
    """Let the running event loop continue until the callback given to `when_ready` is called, from any
    thread.

    Args:
        when_ready: takes what is to be called once ready.
        cancelled: called if the task that waits is cancelled.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def on_ready() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake)

    when_ready(on_ready)
    heartbeat = _Heartbeat(loop)
    try:
        yield from waiter
    except asyncio.CancelledError:
        cancelled()
        raise
    finally:
        heartbeat.stop()


class _Heartbeat:
    """The periodic wake-up of an event loop in which somebody waits: ipykernel's Ctrl-C only takes effect
    when the loop turns.
    """

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle = loop.call_later(HEARTBEAT_S, self._beat)

    def _beat(self) -> None:
        self._handle = self._loop.call_later(HEARTBEAT_S, self._beat)

    def stop(self) -> None:
        """Stop waking the loop."""
        self._handle.cancel()
