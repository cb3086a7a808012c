"""A prompt at the keyboard that can be withdrawn: when another client has answered, the user needn't.

`input` blocks the main thread, in a kernel and in a terminal alike, and the one thing that ends it there is a
signal whose handler raises. So the thread that takes it back sends the main thread a SIGINT, as Ctrl-C would,
and the handler tells the two apart.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class TakenBack(Exception):
    """The error of a withdrawn question: it needs no answer any more."""


class _Over(BaseException):
    """The exception by which the signal's handler ends a prompt. It is no Exception: ipykernel's loop around
    the keyboard would only log that.
    """


class Question:
    """A prompt like `input` that can be withdrawn. While it is entered, Ctrl-C raises KeyboardInterrupt, also
    in a cell that passes it on otherwise.

    In other threads than the main one it can't be withdrawn: it waits for an answer then.

    Args:
        read: shows a prompt and returns the typed line.
        on_taken_back: called when a visible prompt is withdrawn.
    """

    def __init__(
        self, read: Callable[[str], str] | None = None, on_taken_back: Callable[[], None] | None = None
    ) -> None:
        self._read = read
        self._on_taken_back = on_taken_back
        self._is_main = threading.current_thread() is threading.main_thread()
        self._lock = threading.Lock()
        self._is_open = False
        self._is_taken_back = False
        self._is_needless = False
        """Whether it was withdrawn before it was asked."""
        self._before: Any = None

    def __enter__(self) -> Question:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)

    def __call__(self, prompt: str) -> str:
        """Show the prompt; return the typed line.

        Raises:
            TakenBack: if it was taken back before there was an answer.
        """
        try:
            with self._lock:
                is_needless, self._is_needless = self._is_needless, False
                self._is_open = not is_needless
            if is_needless:
                raise TakenBack
            try:
                return (self._read or input)(prompt)
            finally:
                with self._lock:
                    self._is_open = False
        except _Over:
            self._is_open = False
            if self._on_taken_back is not None:
                self._on_taken_back()
            raise TakenBack from None

    def take_back(self) -> None:
        """Withdraw the open question, or otherwise the next one at once. May be called from any thread."""
        with self._lock:
            if not self._is_main or self._is_taken_back:
                return
            if not self._is_open:
                self._is_needless = True
                return
            self._is_taken_back = True
            ident = threading.main_thread().ident
            if ident is not None:
                signal.pthread_kill(ident, signal.SIGINT)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._is_taken_back:
            self._is_taken_back = False
            if self._is_open:
                raise _Over
            return  # the answer came at the same moment
        signal.default_int_handler(signum, frame)
