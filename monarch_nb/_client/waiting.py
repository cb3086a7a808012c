"""Waiting for answers in a notebook. If a rank stops at a breakpoint meanwhile, the waiting cell becomes the
debugger's prompt; if the kernel is shut down, the wait ends, and the ranks' work continues.

Who can show a prompt sets `on_stop`. In a program that is no notebook, and in other threads than the main
one, this is a plain wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb._client import kernel
from monarch_nb._client.sessions import known
from monarch_nb._transport.pending import Pending
from monarch_nb._transport.transport import Transport

if TYPE_CHECKING:
    from monarch_nb._client.session import Session

on_stop: Callable[[Session], Exception | None] | None = None
"""Called in the main thread when a rank has stopped; returns when the wait may continue. An exception that it
returns is raised when the wait is over.
"""

on_long: Callable[[Any, float], Callable[[], None]] | None = None
"""Shows a long transfer of the data plane, given its start time (monotonic); returns the function that ends
the display.
"""

_main = threading.main_thread().ident


class Wakeup(Pending):
    """A substitute for an awaited answer: ready when the answer has arrived, or when a rank has stopped at a
    breakpoint.
    """

    __slots__ = ("woken",)

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, ())
        self.woken = False

    def wake(self) -> None:
        """Wake the waiting thread. Called in the reading thread, or before the wait."""
        self.ready = True
        self.transport.reader.notify(self)

    def wake_for_stop(self) -> None:
        """Wake the waiting thread because a rank has stopped, or asks for input."""
        self.woken = True
        self.wake()


def wait(pending: Pending, deadline: float | None) -> bool:
    """Wait until an answer is there; False if `deadline` (monotonic) passed first.

    Raises:
        KernelShutDown: if this is a kernel, and it is being shut down.
    """
    if (on_stop is None and kernel.known() is None) or threading.get_ident() != _main:
        return wait_simply(pending, deadline)
    session = known(pending.transport)
    if session is None or session.notebook is None:
        return wait_simply(pending, deadline)
    session.num_waiting += on_stop is not None
    try:
        return _wait_in_notebook(session, pending, deadline)
    finally:
        session.num_waiting -= on_stop is not None


def wait_simply(pending: Pending, deadline: float | None) -> bool:
    """Wait until an answer is there, ignoring stops at breakpoints; False if `deadline` (monotonic) passed
    first.
    """
    if not pending.claim():
        return _wait_beside(pending, deadline)
    try:
        return pending.transport.reader.wait(pending, deadline)
    finally:
        pending.waited = False


def _wait_beside(pending: Pending, deadline: float | None) -> bool:
    """Wait for an object that another thread waits for in the reader; if that thread gives up, the background
    reader reads.
    """
    done = threading.Event()
    pending.when_ready(done.set)
    done.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return pending.ready


def _wait_in_notebook(session: Session, pending: Pending, deadline: float | None) -> bool:
    error: Exception | None = None
    while True:
        wakeup = Wakeup(pending.transport)
        session.wakeups.append(wakeup)
        if session.num_stops > session.num_stops_shown:
            wakeup.wake_for_stop()  # the stop came before this wait began
        if kernel.is_ending():
            wakeup.wake()
        pending.when_ready(wakeup.wake)
        try:
            pending.transport.reader.wait(wakeup, deadline)
        finally:
            session.wakeups.remove(wakeup)
        if error is not None and (pending.ready or not wakeup.woken):
            raise error
        if pending.ready:
            return True
        if kernel.is_ending():
            raise kernel.KernelShutDown
        if not wakeup.woken:
            return False
        session.num_stops_shown = session.num_stops
        error = (on_stop(session) if on_stop is not None else None) or error
