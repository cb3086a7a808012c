"""Many lines of one cell or call: they go through memory that the host process shares (`_wire/ring`).

A line through the pipe costs two calls of Python functions and one of the kernel. After `MANY_LINES` lines,
text is collected by Python's own `TextIOWrapper`, which is C, and only whole lines come here. Nothing changes
for anybody who looks: a line leaves at once, lines of a rank that crashes are kept, and order is as printed.

It's for one thread that prints, though, and for code that leaves descriptor 1 alone. Whatever may change that
ends it: a thread or a process that is started, another cell, a descriptor that is written to or redirected,
text for stderr, the end of the call. Then lines take the pipe again. What nobody here can see is C code that
writes to descriptor 1: its text may come two milliseconds before lines that were printed first.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb._transport.context import call_context
from monarch_nb._wire import marks
from monarch_nb._wire.ring import HEAD, IS_ASLEEP, KEEPS_ORDER, RingWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from monarch_nb._rank.streams import OutputPipe

MANY_LINES = 64
_NEVER = -(1 << 62)
"""Number of lines from which nobody counts to `MANY_LINES`: this call's lines take the pipe."""
_NOBODY = -1
_STARTS_PROCESSES = frozenset(
    ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec")
)


class Burst:
    """Many lines of one cell or call; `write` and `flush` are the stream's meanwhile.

    Attributes:
        is_on: whether text is to be written here.
        main_is_busy: tells whether the main thread runs code of the user's.
    """

    def __init__(self, pipe: OutputPipe) -> None:
        self._pipe = pipe
        self._ring: RingWriter | None = None
        self._is_possible = KEEPS_ORDER
        self._origin = _NOBODY
        self._text: io.TextIOWrapper | None = None
        self._forget_whose: Callable[[], None] = lambda: None
        self.is_on = False
        self.main_is_busy: Callable[[], bool] = lambda: True

    @property
    def write(self) -> Callable[[str], int]:
        """Write text."""
        assert self._text is not None
        return self._text.write

    def flush(self) -> None:
        """Write an unfinished line."""
        assert self._text is not None
        self._text.flush()

    # --- when it's used

    def can_start(self) -> bool:
        """Prepare for lines of the running cell or call, or say that they take the pipe."""
        if not (self._is_possible and self._prints_alone() and self._pipe.is_own(1)):
            self._pipe.num_lines = _NEVER
            return False
        self._pipe.num_lines = 0
        if self._ring is None:
            self._make_ring()
        elif self._ring.is_ready:
            self._forget_whose()
            self.is_on = True
        return self.is_on

    def stop(self) -> None:
        """Let text take the pipe from now on; it's behind what was written here."""
        if self.is_on:
            self._pipe.streams["stdout"].use_pipe()
            self.flush()
            self._leave()

    def _leave(self) -> None:
        """Undo what `can_start` did. An interrupt may come at any step: `stop` does it all again then."""
        self._pipe.streams["stdout"].use_pipe()
        self._origin = _NOBODY
        self._pipe.num_lines = 0
        self._tell_host()
        self.is_on = False

    def forget(self) -> None:
        """Leave the ring to the process that has forked this one."""
        self.is_on, self._is_possible = False, False
        self._pipe.streams["stdout"].use_pipe()

    def _prints_alone(self) -> bool:
        """Return whether no other thread runs code of the user's, nor another task of this one."""
        here, main = threading.current_thread(), threading.main_thread()
        others = [t for t in threading.enumerate() if t is not here and not t.name.startswith("monarch_nb")]
        if here is not main and not self.main_is_busy():
            others.remove(main)
        return not others and asyncio._get_running_loop() is None

    def _make_ring(self) -> None:
        try:
            self._ring = ring = RingWriter()
        except OSError:
            self._is_possible = False
            return
        lines: Any = _Lines(self._writer(ring))
        self._text = io.TextIOWrapper(lines, "utf-8", "replace", newline="\n", line_buffering=True)
        _watch(self.stop)
        self._pipe.write_mark(marks.NEW_RING, f"{os.getpid()}:{ring.fd}")

    # --- lines

    def _writer(self, ring: RingWriter) -> Callable[[bytes], None]:
        """Return what takes a line. It calls as little as it can."""
        context, tell, write, words = call_context.get, ring.tell, ring.write, ring.words
        limit = base = 0
        whose: object = None  # the context of the last line

        def write_line(data: bytes) -> None:
            if tell() + len(data) > limit or context() is not whose:
                write_slowly(data)
                return
            write(data)
            words[HEAD] = base + tell()  # a signal's handler may have printed before
            if words[IS_ASLEEP]:
                self._tell_host()

        def write_slowly(data: bytes) -> None:
            nonlocal limit, base, whose
            self._write(ring, data)
            limit, base, whose = ring.limit, ring.base, context()

        def forget_whose() -> None:
            nonlocal whose
            whose = None

        self._forget_whose = forget_whose
        return write_line

    def _write(self, ring: RingWriter, data: bytes) -> None:
        """Write a line of another origin than the one before, or where there may be no room."""
        origin, pipe = call_context.get().origin, self._pipe
        pipe.unsettled.add(origin)
        text = data
        if origin != self._origin:
            text = pipe.mark(marks.TEXT, origin, "stdout") + data
        if ring.append(text):
            self._origin = origin
            if ring.words[IS_ASLEEP]:
                self._tell_host()
        else:
            self._leave()
            pipe.write(origin, "stdout", data)

    def _tell_host(self) -> None:
        assert self._ring is not None
        words = self._ring.words
        words[IS_ASLEEP] = 0
        self._pipe.write_mark(marks.RING, str(words[HEAD]))


class _Lines:
    """The file that `TextIOWrapper` writes to."""

    __slots__ = ("closed", "flush", "write")

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write
        self.flush = threading.get_ident  # it does nothing, and that fast: it's called for each line
        self.closed = False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        pass


def _nothing() -> None:
    """Nobody watches."""


_stop: Callable[[], None] = _nothing
_close, _write, _dup2 = os.close, os.write, os.dup2


def _watch(stop: Callable[[], None]) -> None:
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
