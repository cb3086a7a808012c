"""Decides, in a Jupyter kernel, whether an interrupt is meant for the cell, and whether the kernel is being
shut down.

Whoever shuts a kernel down (Restart, Shut Down, the end of the server: all are
`KernelManager.shutdown_kernel` of jupyter_client) interrupts it first, so that a busy kernel comes to rest.
To ranks, whose work outlives the kernel, that interrupt must not be passed on. It looks like any other, but a
shutdown_request follows on the control channel, which ipykernel reads in a thread of its own. So an interrupt
is held until it's clear what it is:

    a shutdown follows       it was none: whoever waits is told that the kernel leaves (`KernelShutDown`),
                             and the work goes on
    the server says: meant   it's passed on at once (`CONFIRMED`, a signal that everybody else ignores;
                             `monarch_nb._server.interrupts`)
    it is pressed again      whoever does that wants it: it's passed on after `AGAIN_S`, unless that was a
                             shutdown's
    neither for `HOLD_S`     it's passed on; that's where there is no Jupyter server with our extension
                             (jupyter console, nbclient)

The time is counted in turns of the control thread's event loop. Each turn has read what had come before, and
on a machine so loaded that this process isn't run, it doesn't pass. A kernel that is killed meanwhile has
passed nothing on.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

HOLD_S = 1.0
TURN_S = 0.05
AGAIN_S = 0.2

_UNCLEAR_S = 15.0
"""Time after which an interrupt counts as meant, whatever the control thread does."""

_MAX_PRESSES = 5

_COME_TO_REST_S = 1.0
"""How long a shutdown waits for the running cell to end and to report; jupyter_client waits 2.5 s for the
kernel.
"""

_REPLY_S = 0.02

CONFIRMED = signal.SIGURG


class KernelShutDown(KeyboardInterrupt):
    """The error raised in a wait for ranks when the kernel shuts down. The ranks continue."""

    def _render_traceback_(self) -> list[str]:
        return f"KernelShutDown: {self}".split("\n")


class Kernel:
    """A watcher of the interrupts and the shutdown that a kernel gets from its manager. Decisions are made in
    the control thread; all methods may be called from any thread.
    """

    def __init__(self, kernel: Any) -> None:
        self.is_ending = False
        self.on_end: list[Callable[[], None]] = []
        """Callbacks of the control thread when the kernel is being shut down: quick ones, which wake threads
        that wait for ranks.
        """
        self.leave: Callable[[str], None] = lambda _why: None
        """Finishes running displays before waiting threads are woken."""
        self._loop = kernel.control_thread.io_loop
        self._held: Callable[[], None] | None = None
        self._drop: Callable[[], None] | None = None
        self._turns_left = 0
        self._timer: object = None
        self._confirmed_at = -HOLD_S
        self._watch_shutdown(kernel)
        self._watch_confirmations()

    def _watch_shutdown(self, kernel: Any) -> None:
        do_shutdown = kernel.do_shutdown

        async def noticed(restart: bool) -> Any:
            if self._shut_down():
                await _come_to_rest(kernel)
            answer = do_shutdown(restart)
            return await answer if inspect.isawaitable(answer) else answer

        kernel.do_shutdown = noticed

    def _watch_confirmations(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(CONFIRMED) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(CONFIRMED, self._on_confirmed)

    def _on_confirmed(self, number: int, frame: object) -> None:
        self._confirmed_at = time.monotonic()  # the next turn of the loop sees it

    def when_meant(self, act: Callable[[], None], drop: Callable[[], None] | None = None) -> None:
        """Call `act` in the control thread once it's clear that an interrupt that has come is meant, or
        `drop` if it isn't.
        """
        self._loop.add_callback(self._hold, act, drop)

    def is_meant(self) -> bool:
        """Wait until it's clear whether an interrupt that has come is meant, and say so. For the main thread,
        which may be interrupted again.
        """
        decided = threading.Event()
        for _ in range(_MAX_PRESSES):
            with suppress(KeyboardInterrupt):
                self.when_meant(decided.set, decided.set)
                decided.wait(_UNCLEAR_S)
                break
        return not self.is_ending

    # --- in the control thread

    def _hold(self, act: Callable[[], None], drop: Callable[[], None] | None) -> None:
        if self.is_ending:
            if drop is not None:
                drop()
        elif self._held is None:
            self._held, self._drop = act, drop
            self._turns_left = round(HOLD_S / TURN_S)
            self._turn()
        else:
            self._turns_left = min(self._turns_left, round(AGAIN_S / TURN_S))

    def _turn(self) -> None:
        if self._turns_left <= 0 or time.monotonic() - self._confirmed_at < HOLD_S:
            self._pass_on()
            return
        self._turns_left -= 1
        self._timer = self._loop.call_later(TURN_S, self._turn)

    def _pass_on(self) -> None:
        act = self._let_go()
        if act is not None:
            act()

    def _let_go(self) -> Callable[[], None] | None:
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        act, self._held, self._drop = self._held, None, None
        return act

    def _shut_down(self) -> bool:
        """Begin the kernel's shutdown: drop a held interrupt, which was not meant as one, and call listeners.
        Return whether a thread may have waited for ranks.

        Whether somebody does right now doesn't count: the interrupt may have ended the wait, and the cell is
        about to say what became of it.
        """
        if self.is_ending:
            return False
        self.is_ending = True
        drop = self._drop
        self._let_go()
        if drop is not None:
            drop()
        with suppress(Exception):  # if displays can't be finished, the kernel ends nevertheless
            self.leave(f"this kernel was shut down at {time.strftime('%H:%M:%S')}")
        callbacks = list(self.on_end)
        for each in callbacks:
            each()
        return bool(callbacks)


async def _come_to_rest(kernel: Any) -> None:
    """Wait, in the control thread, until the main thread is back in its event loop, so that the cell's last
    messages are sent.
    """
    loop = asyncio.get_running_loop()
    rested = asyncio.Event()

    def at_rest() -> None:
        with suppress(RuntimeError):  # the control thread's loop has been closed
            loop.call_soon_threadsafe(rested.set)

    kernel.io_loop.add_callback(kernel.io_loop.call_later, _REPLY_S, at_rest)
    with suppress(TimeoutError):
        await asyncio.wait_for(rested.wait(), _COME_TO_REST_S)


_kernel: Kernel | None = None


def watch() -> Kernel | None:
    """Return this program's kernel, watched from now on; None if there is no kernel, or it has no control
    thread. Call it in the main thread.
    """
    global _kernel
    if _kernel is None:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        kernel = getattr(shell, "kernel", None)
        if getattr(kernel, "control_thread", None) is not None:
            _kernel = Kernel(kernel)
    return _kernel


def leave_first(function: Callable[[str], None]) -> None:
    """Have `function` called first when this program, if it's a kernel, is shut down: in the control thread,
    with the reason.
    """
    found = watch()
    if found is not None:
        found.leave = function


def known() -> Kernel | None:
    """Return this program's kernel if it's watched."""
    return _kernel


def is_ending() -> bool:
    """Return whether this program is a kernel that is being shut down."""
    return _kernel is not None and _kernel.is_ending


def is_meant() -> bool:
    """Return whether a received interrupt is meant for this program; wait until that is clear. Returns at
    once if no kernel is watched.
    """
    return _kernel is None or _kernel.is_meant()


def when_meant(act: Callable[[], None]) -> None:
    """Call `act` if a received interrupt is meant for this program, as soon as that is clear. Calls it at
    once if no kernel is watched.
    """
    if _kernel is None:
        act()
    else:
        _kernel.when_meant(act)
