"""stdout and stderr of a rank: text is written to the pipe on descriptor 1, with marks that name its cell.

Both Python streams use one pipe, so their order is kept. Many lines go through memory instead (`bursts`).
What C code or a subprocess writes to descriptors 1 and 2 belongs to the cell that runs. Lines leave at once,
so a crash finds them written.

Descriptors 1 and 2 and `sys.stdout` are the user's to close, redirect or replace. We keep copies, and look
after each piece of work (`OutputPipe.settle`).
"""

from __future__ import annotations

import contextvars
import errno
import fcntl
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from monarch_nb._protocol.shown import Shown
from monarch_nb._rank.bursts import MANY_LINES, Burst
from monarch_nb._transport.context import call_context
from monarch_nb._transport.failure import class_name, message_of
from monarch_nb._wire import marks

_context = call_context.get
_os_write = os.write  # `bursts` puts another function in its place, for others
_MAX_HELD = 1 << 14
_MAX_AT_ONCE = select.PIPE_BUF // 4
"""So many characters are written in one piece, also beside other threads: each takes up to four bytes."""
_MAX_MARKS_KEPT = 64
_FIRST_KEPT = 100
"""First number of kept descriptors: programs expect low numbers for files that they open."""


class OutputPipe:
    """The pipes to the host process; a lock makes each mark and its text one write.


    Both ends assume that unmarked bytes belong to the cell that was begun last: the host process reads what
    is there before it sends a cell here. A mark is needed only where something else has been written in
    between.
    """

    def __init__(self, token: str) -> None:
        self.lock = threading.RLock()
        self._token = token
        self.cell = 0
        """The cell to which unmarked output belongs."""
        self._marked = False
        self._is_broken = False
        """Whether descriptor 1 couldn't be written to."""
        self._kept = {fd: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_KEPT) for fd in (1, 2)}
        """Private copies of the descriptors."""
        self._identity = {fd: _identity(kept) for fd, kept in self._kept.items()}
        self.streams: dict[str, RankStream] = {}
        """Our own, by name."""
        self.announced_widgets = False
        self.burst = Burst(self)
        self.num_lines = 0
        """Lines of stdout since the beginning of the cell or call, about: many of them become a burst."""
        self.unsettled: set[int] = set()
        """Cells with output since the last mark."""
        self._num_marks = (
            int(time.time()) & 0x3FFFFFFF
        )  # so that marks of a restarted rank aren't mistaken for older ones
        self._marks_around: dict[tuple[int, str], tuple[bytes, bytes]] = {}
        """Marks before and after text of an origin and stream: a program prints many lines of one in a
        row.
        """

    def forget_lock(self) -> None:
        """Make a new lock, in a child: a thread that was writing at the fork isn't there to release the
        old one.
        """
        self.lock = threading.RLock()
        self.burst.forget()

    def begin_origin(self, origin: int) -> None:
        """Assign unmarked output from now on to cell `origin`, also after its end."""
        self._end_burst()
        with self.lock:
            self.cell = origin
            self._marks_around.clear()
            if self._marked:
                self._marked = False
                self._write_all(marks.mark(self._token, marks.TEXT, origin, "stdout"))

    def _end_burst(self) -> None:
        """Have the next cell or call count its lines anew."""
        self.burst.stop()
        self.burst.has_stopped = False
        self.num_lines = 0

    def write(self, origin: int, stream: str, data: bytes) -> None:
        """Write text of one cell and stream."""
        if self.burst.is_on:
            self.burst.stop()
        if origin == self.cell and stream == "stdout" and len(data) <= select.PIPE_BUF:
            self._write_all(data)  # in one piece, also beside other threads
            return
        with self.lock:
            if origin != self.cell or stream != "stdout":
                before, behind = self._marks_around.get((origin, stream)) or self._marks_of(origin, stream)
                data = before + data + behind
            self._write_all(data)

    def _marks_of(self, origin: int, stream: str) -> tuple[bytes, bytes]:
        self._marked = True
        if len(self._marks_around) >= _MAX_MARKS_KEPT:
            self._marks_around.clear()
        before = marks.mark(self._token, marks.TEXT, origin, stream)
        around = before, marks.mark(self._token, marks.TEXT, self.cell, "stdout")
        self._marks_around[origin, stream] = around
        return around

    def mark_answer(self, origin: int) -> int:
        """Mark the end of what was printed for a cell before an answer; return the mark's number, for the
        answer.
        """
        self._end_burst()
        with self.lock:
            for stream in self.streams.values():
                stream.flush()
            if self._is_broken:
                self._restore_closed(origin)
            self.unsettled.discard(origin)
            self._num_marks = self._num_marks % 0xFFFFFFFF + 1
            self.write_mark(marks.SETTLED, str(self._num_marks), origin)
            return self._num_marks

    def mark(self, kind: str, origin: int, argument: str) -> bytes:
        """Return the bytes of a mark."""
        return marks.mark(self._token, kind, origin, argument)

    def write_mark(self, kind: str, argument: str, origin: int = 0) -> None:
        """Write a mark that no text belongs to. To the private copy: user code may have redirected
        descriptor 1 to a file, where a mark is useless.
        """
        _write_all(self._kept[1], self.mark(kind, origin, argument))

    def display(self, origin: int, shown: Shown) -> None:
        """Write a rich display between the lines."""
        self.burst.stop()
        with self.lock:
            self.unsettled.add(origin)
            self._write_all(marks.display_mark(self._token, origin, shown))

    def _write_all(self, data: bytes) -> None:
        try:
            written = _os_write(1, data)
            if written < len(data):
                _write_all(1, data[written:])
        except BlockingIOError:
            _write_all(1, data)
        except OSError as error:  # closed, or open for reading: the copy is good
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.EPERM):
                raise
            self._is_broken = True
            _write_all(self._kept[1], data)

    def settle(self) -> list[str]:
        """Write held output, and repair descriptors and streams that user code has changed; return messages
        about that.
        """
        self.burst.stop()
        with self.lock:
            found = [text for fd in (1, 2) if (text := self._mended(fd))]
            for name, stream in self.streams.items():
                if getattr(sys, name, None) is None:
                    setattr(sys, name, stream)
                    found.append(f"sys.{name} was None: it is the rank's own again")
                stream.flush()
        return found

    def _restore_closed(self, origin: int) -> None:
        """Restore descriptors that an actor's call has closed, before another file gets their numbers, and
        say so in the call's output. One that was redirected is left to whoever uses it.
        """
        self._is_broken = False
        for fd in (1, 2):
            try:
                _identity(fd)
            except OSError:
                self.write(origin, "stderr", f"{self._mended(fd)}\n".encode())

    def is_own(self, fd: int) -> bool:
        """Return whether a descriptor leads where it did at first."""
        with suppress(OSError):
            return _identity(fd) == self._identity[fd]
        return False

    def _mended(self, fd: int) -> str:
        """Restore a descriptor that was redirected; return a message about it."""
        try:
            now = _identity(fd)
        except OSError:
            now = None
        if now == self._identity[fd]:
            return ""
        os.dup2(self._kept[fd], fd)
        return (
            f"descriptor {fd} was {'closed' if now is None else 'redirected'}: it leads to the cell's "
            "output again"
        )


class RankStream(io.TextIOBase):
    """sys.stdout or sys.stderr of a rank. Any thread may write; each has an unfinished line of its own."""

    __slots__ = ("_fd", "_pipe", "_stream", "_unended", "_write_to_pipe")

    write: Callable[[str], int]
    """Writes text. `print` looks it up twice a line, and finds a function of the class most quickly. Users
    put others in its place, which count first: those are the object's.
    """

    def __new__(cls, *_: object) -> RankStream:
        return super().__new__(type(cls.__name__, (cls,), {"__slots__": (), "__module__": cls.__module__}))

    def __init__(self, pipe: OutputPipe, name: str, fd: int) -> None:
        self._pipe = pipe
        self._stream = name
        self._fd = fd
        self._unended: dict[int, tuple[int, str]] = {}
        """Whose line each thread has begun, and its beginning. Whoever pops one has it alone, so no lock is
        needed.
        """
        self._write_to_pipe = self._writer()
        self.use_pipe()

    def use_pipe(self) -> None:
        """Let text take the pipe."""
        type(self).write = self._write_to_pipe
        self._unhide(self._pipe.burst.write)

    def _unhide(self, function: Callable[[str], int] | None) -> None:
        """Remove a function that hides the class's `write`: who has put another one in its place, and then
        it back, has left it in the object.
        """
        if self.write is function:
            with suppress(AttributeError):
                del self.write

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Always UTF-8."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """The handling of characters that can't be encoded: they are replaced."""
        return "replace"

    @property
    def name(self) -> str:
        """The name of the interpreter's own stream."""
        return f"<{self._stream}>"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def flush(self) -> None:
        if self._fd == 1 and self._pipe.burst.is_on:
            self._pipe.burst.flush()
        while self._unended:
            with suppress(KeyError):  # another thread was quicker
                _, (origin, text) = self._unended.popitem()
                self._send(origin, text)

    def _writer(self) -> staticmethod[[str], int]:
        """Return `write`. It calls as little as it can: 80,000 lines are nothing unusual."""
        pipe, send, unended, is_stdout = self._pipe, self._send, self._unended, self._fd == 1
        burst = pipe.burst
        pop, unsettle, thread = unended.pop, pipe.unsettled.add, threading.get_ident

        def write(text: str) -> int:
            if not isinstance(text, str):
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            if burst.has_stopped or burst.is_on:  # who has looked `write` up before calls this one
                burst.stop()
            size, origin, key = len(text), _context().origin, thread()
            begun = pop(key, None)
            if begun is not None:
                if begun[0] == origin:
                    text = begun[1] + text
                else:
                    send(*begun)
            unsettle(origin)
            if "\n" not in text and "\r" not in text and len(text) <= _MAX_HELD:
                unended[key] = origin, text
                return size
            if is_stdout and origin == pipe.cell and len(text) <= _MAX_AT_ONCE:
                data = text.encode("utf-8", "replace")
                try:
                    written = _os_write(1, data)
                except OSError:
                    written = 0
                if written < len(data):
                    pipe.write(origin, "stdout", data[written:])
            else:
                send(origin, text)
            if is_stdout:
                pipe.num_lines += 1
                if pipe.num_lines == MANY_LINES:
                    self._start_burst()
            return size

        return staticmethod(write)

    def _start_burst(self) -> None:
        own, pipe = self._write_to_pipe.__func__, self._pipe
        if self.write is not own:  # a user's, which must be called
            pipe.num_lines = 0
            return
        self.flush()
        if (quick := pipe.burst.start()) is not None:
            type(self).write = quick
            self._unhide(own)

    def _send(self, origin: int, text: str) -> None:
        self._pipe.write(origin, self._stream, text.encode("utf-8", "replace"))


def install(token: str) -> OutputPipe:
    """Replace sys.stdout and sys.stderr; return the pipe."""
    pipe = OutputPipe(token)
    sys.stdout = sys.__stdout__ = pipe.streams["stdout"] = RankStream(pipe, "stdout", 1)  # type: ignore[assignment,misc]
    sys.stderr = sys.__stderr__ = pipe.streams["stderr"] = RankStream(pipe, "stderr", 2)  # type: ignore[assignment,misc]
    _let_threads_inherit(pipe)
    return pipe


def _let_threads_inherit(pipe: OutputPipe) -> None:
    """Run each new thread in a copy of its starter's context, as Python 3.14 can: its output belongs to the
    cell that started it.
    """
    start = threading.Thread.start

    def start_in_context(thread: threading.Thread) -> None:
        pipe.burst.stop()
        # `partial` has no frame, which would appear in tracebacks of the users' threads
        thread.run = partial(contextvars.copy_context().run, thread.run)  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_in_context  # type: ignore[assignment,method-assign]


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[_os_write(fd, view) :]
        except BlockingIOError:  # user code has made the descriptor non-blocking
            select.select([], [fd], [])


def _identity(fd: int) -> tuple[int, int]:
    """Return device and inode, which tell a file from others.

    Raises:
        OSError: if the descriptor is closed.
    """
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def flush_replaced(own: OutputPipe) -> str:
    """Flush the user's replacements of `sys.stdout` and `sys.stderr`; return messages about errors."""
    for name, stream in own.streams.items():
        now = getattr(sys, name, None)
        flush = (
            None if now is stream else getattr(now, "flush", None)
        )  # print accepts any object with `write`
        if flush is None:
            continue
        try:
            flush()
        except Exception as error:
            return (
                f"sys.{name} is {class_name(now)}, whose flush raised {class_name(error)}: "
                f"{message_of(error)}"
            )
    return ""
