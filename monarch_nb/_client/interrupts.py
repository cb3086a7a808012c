"""Forwarding of Ctrl-C to ranks while they work: it is meant for them, and raises nothing here.

A KeyboardInterrupt may come between any two bytecodes, in the middle of a send or of a display. So, while a
cell runs, SIGINT only wakes a background thread, which tells the controller; the waiting thread goes on until
the cell is over. Who presses `MAX_PRESSES` times wants out in any case. In a kernel, an interrupt that comes
before a shutdown isn't passed on (`kernel`).
"""

from __future__ import annotations

# the functions beneath `signal`, which converts numbers to enums and back: slower than all the rest here
import _signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from monarch_nb._client import kernel
from monarch_nb._transport.reader import Reader

MAX_PRESSES = 5


class Interrupts:
    """A context manager that forwards SIGINT to the ranks while its `with` block runs. It does nothing in
    threads other than the main one.

    Args:
        press: forwards one interrupt to the controller; called in the background reader, once for each
            Ctrl-C. It may be set later (`pass_to`).
    """

    def __init__(self, reader: Reader, press: Callable[[], None] | None = None) -> None:
        self.num_presses = 0
        self._reader = reader
        self._press = press
        self._previous: Any = None
        self._active = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = _signal.signal(_signal.SIGINT, self._on_signal)
            self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            self._active = False
            _signal.signal(
                _signal.SIGINT, self._previous if self._previous is not None else _signal.default_int_handler
            )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.num_presses += 1
        if self.num_presses >= MAX_PRESSES:
            raise KeyboardInterrupt("stopped waiting; the code on the ranks goes on")
        if self._press is not None:
            self._reader.call_from_signal(self._pass_on)

    def _pass_on(self) -> None:
        press = self._press
        if press is not None:
            kernel.when_meant(lambda: self._reader.call_from_signal(press))

    def pass_to(self, press: Callable[[], None]) -> None:
        """Forward Ctrl-C to `press` from now on, and those that have come before."""
        num = self.num_presses
        self._press = press
        for _ in range(num):
            self._pass_on()
