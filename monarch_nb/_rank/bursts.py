"""Many lines of one cell or call: they go through memory that the host process reads (`text_memory`).

A line through the pipe costs two calls of Python functions and one of the kernel. After `MANY_LINES` lines,
text is written into that memory by Python's own `TextIOWrapper`; all of that is C. Little changes for anybody
who looks: a line is seen some milliseconds later, lines of a rank that crashes are kept, and order is as
printed.

It's for one thread that prints, though, and for code that leaves descriptor 1 alone. Whatever may change that
ends it: a thread or a process that is started, another cell, a descriptor that is written to or redirected,
text for stderr, the end of the call. Then lines take the pipe again. What nobody here can see is C code that
writes to descriptor 1: its text may come before lines that were printed first.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb._transport.context import call_context
from monarch_nb._wire import marks
from monarch_nb._wire.text_memory import TextMemory

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from monarch_nb._rank.streams import OutputPipe

MANY_LINES, QUICK_S = 16, 0.1
"""So many lines within this time, in seconds, begin a burst; as much time without any ends it."""
LOOK_S = 0.02
"""Seconds between two looks whether lines come, and whether the host process keeps up: the pipe makes the
program wait, memory doesn't.
"""
_NEVER = -(1 << 62)
"""Number of lines from which nobody counts to `MANY_LINES`: this call's lines take the pipe."""
_STARTS_PROCESSES = frozenset(
    ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec")
)


class Burst:
    """Many lines of one cell or call.

    Attributes:
        is_on: whether text is to be written by what `start` has returned.
        has_stopped: whether there was one in the cell or call that runs: then `stop` is called before text
            takes the pipe, for `print` may have looked up `write` before, and made text of a value meanwhile.
        main_is_busy: tells whether the main thread runs code of the user's.
        write: writes text into memory; None until there's some.
    """

    def __init__(self, pipe: OutputPipe) -> None:
        self._pipe = pipe
        self._memory: TextMemory | None = None
        self._is_possible = True
        self._end = 0
        """Up to where the host process was told of text."""
        self._origin = 0
        self._counted_from = 0.0
        """When the last line was that isn't counted."""
        self._began = threading.Event()
        self.write: Callable[[str], int] | None = None
        self.is_on = self.has_stopped = False
        self.main_is_busy: Callable[[], bool] = lambda: True

    def start(self) -> Callable[[str], int] | None:
        """Return what writes text of the running cell or call; None if it takes the pipe on."""
        if not (self._is_possible and self._prints_alone() and self._pipe.is_own(1)):
            self._pipe.num_lines = _NEVER
            return None
        self._pipe.num_lines = 0
        before, self._counted_from = self._counted_from, time.monotonic()
        if self._counted_from - before > QUICK_S:
            return None
        memory = self._memory
        if memory is None:
            self._make_memory()
            return None
        if not memory.is_ready or not (memory.has_room() or memory.rewind()):
            return None
        self._origin, self._end = call_context.get().origin, memory.tell()
        self.is_on = True  # first: an interrupt may come now, and `stop` tells that it's over
        self._pipe.write_mark(marks.BURST, str(self._end), self._origin)
        self._began.set()
        return self.write

    def stop(self) -> None:
        """Let text take the pipe from now on; it's behind what was written here.

        An interrupt may come at any step: whoever calls this next does it all again.
        """
        memory = self._memory
        if memory is None or (not self.is_on and memory.tell() == self._end):
            return
        self._pipe.streams["stdout"].use_pipe()
        if not self.is_on:
            self._pipe.write_mark(marks.BURST, str(self._end), self._origin)
        end, rest = memory.split_overflow() if memory.has_overflowed else (memory.tell(), b"")
        self._pipe.write_mark(marks.BURST_END, str(end), self._origin)
        self._end, self.has_stopped = end, True
        self._pipe.num_lines = 0
        self.is_on = False
        if rest and self._memory is memory:
            self._memory, self._is_possible = None, False
            self._pipe.write(self._origin, "stdout", rest)

    def flush(self) -> None:
        """Show an unfinished line."""
        memory = self._memory
        if memory is not None and memory.tell() != self._end and not memory.ends_with_line:
            self.stop()

    def forget(self) -> None:
        """Leave the memory to the process that has forked this one."""
        self._memory, self.is_on, self._is_possible = None, False, False
        self._pipe.streams["stdout"].use_pipe()

    def _prints_alone(self) -> bool:
        """Return whether no other thread runs code of the user's, nor another task of this one."""
        here, main = threading.current_thread(), threading.main_thread()
        others = [t for t in threading.enumerate() if t is not here and not t.name.startswith("monarch_nb")]
        if here is not main and not self.main_is_busy():
            others.remove(main)
        return not others and asyncio._get_running_loop() is None

    def _make_memory(self) -> None:
        try:
            memory = TextMemory()
            threading.Thread(target=self._watch, args=(memory,), name="monarch_nb-lines", daemon=True).start()
        except (OSError, ValueError, RuntimeError):  # no memory, or no more threads
            self._is_possible = False
            return
        self.write = memory.text_writer()
        self._end = memory.tell()
        self._memory = memory
        _watch_descriptors(self.stop)
        self._pipe.write_mark(marks.BURST_MEMORY, f"{os.getpid()}:{memory.fd}")

    def _watch(self, memory: TextMemory) -> None:
        """Stop when the host process doesn't keep up."""
        while True:
            self._began.wait()
            self._began.clear()
            position, since = -1, 0.0
            while self.is_on:
                now, before = time.monotonic(), position
                if (position := memory.tell()) != before:
                    since = now
                if memory.has_overflowed:
                    self._pipe.streams["stdout"].use_pipe()  # who prints next stops: what it prints is behind
                elif now - since > QUICK_S or not memory.has_room():
                    self.stop()
                time.sleep(LOOK_S)


def _nothing() -> None:
    """Nobody watches."""


_stop: Callable[[], None] = _nothing
_close, _write, _dup2 = os.close, os.write, os.dup2


def _watch_descriptors(stop: Callable[[], None]) -> None:
    """Call `stop` before a process is started, or descriptor 1 is written to, closed or replaced."""
    global _stop, _close, _write, _dup2
    _stop, _close, _write, _dup2 = stop, os.close, os.write, os.dup2

    def before_process(event: str, _args: Any) -> None:
        if event in _STARTS_PROCESSES:
            stop()

    sys.addaudithook(before_process)
    os.close, os.write, os.dup2 = close, write, dup2


# Functions with names of their own, for the user's code may send those of `os` to other processes.


def close(fd: int) -> None:
    """Close a descriptor, as `os.close`."""
    if fd == 1:
        _stop()
    _close(fd)


def write(fd: int, data: Buffer, /) -> int:
    """Write to a descriptor, as `os.write`."""
    if fd == 1:
        _stop()
    return _write(fd, data)


def dup2(fd: int, fd2: int, inheritable: bool = True) -> int:
    """Duplicate a descriptor, as `os.dup2`."""
    if fd2 == 1:
        _stop()
    return _dup2(fd, fd2, inheritable)
