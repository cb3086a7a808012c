"""Breakpoints set by other processes while code runs.

A thread is traced only if it does so itself. The main thread is told by a signal, whose handler runs in it,
also in the middle of a cell; an actor's thread looks before each call.
"""

from __future__ import annotations

import linecache
import os
import re
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

from monarch_nb._frames.cells import cell_number
from monarch_nb._frames.elsewhere import local_path, notebook_path

if TYPE_CHECKING:
    from monarch_nb._rank.debugger import Debugger

SIGNAL = signal.SIGRTMIN + 3
_CELL = re.compile(r"In\s*\[(\d+)\]")


class Breakpoints:
    """The breakpoints of this process; set in the reading thread, armed in each thread of the user's."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._wanted: list[tuple[str, int, str]] = []
        self.version = 0
        """Number of changes: a thread armed for an earlier one has to look again."""
        self._main = threading.main_thread().ident or 0
        signal.signal(SIGNAL, self._on_signal)

    def add(self, file: str, line: int, condition: str) -> str:
        """Set a breakpoint; return a message about it. No file: clear all."""
        if not file:
            self._wanted.clear()
            self._renew()
            return "no breakpoints"
        if condition:
            try:
                compile(condition, "<condition>", "eval")
            except SyntaxError as error:
                return f"not set: the condition {condition!r} is not Python: {error.msg}"
        path = find(file)
        known = path is not None
        if path is not None:
            lines = linecache.getlines(path)
            if lines and not (
                0 < line <= len(lines)
                and lines[line - 1].strip()
                and not lines[line - 1].strip().startswith("#")
            ):
                return f"not set: {file} has no code in line {line}"
        self._wanted.append((file, line, condition))
        self._renew()
        suffix = f" if {condition}" if condition else ""
        return f"breakpoint at {file}:{line}{suffix}" + (
            "" if known else "; it waits for such a file to be run"
        )

    def _renew(self) -> None:
        self.version += 1
        signal.pthread_kill(self._main, SIGNAL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.arm(frame)

    def arm(self, frame: FrameType | None) -> None:
        """Trace the calling thread, from `frame` outwards; it stops at the wanted lines."""
        debugger = self._debugger.mine()
        if debugger.armed == self.version:
            return
        debugger.armed = self.version
        debugger.clear_all_breaks()
        for file, line, condition in self._wanted:
            path = find(file)
            if path is not None:
                debugger.set_break(path, line, cond=condition or None)
        if not debugger.breaks:
            debugger.armed = -1 if self._wanted else self.version  # the file may be imported by the next cell
            return
        debugger.begin_tracing(frame)
        _trace(debugger, frame)


def _trace(debugger: Any, frame: FrameType | None) -> None:
    at = frame
    while at is not None:
        at.f_trace = debugger.trace_dispatch
        at = at.f_back
    sys.settrace(debugger.trace_dispatch)


def find(file: str) -> str | None:
    """Return the file name that code has, given a path, the end of one, or a cell by its number."""
    cell = _CELL.fullmatch(file.strip())
    known = list(linecache.cache)
    if cell is not None:
        return next((name for name in reversed(known) if cell_number(name) == int(cell[1])), None)
    if os.path.isabs(file) and os.path.exists(local_path(file)):
        return notebook_path(file)
    loaded = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    names = [notebook_path(name) for name in (*known, *loaded) if isinstance(name, str)]
    found = next((name for name in names if name == file or name.endswith("/" + file.lstrip("./"))), None)
    return found or (notebook_path(os.path.abspath(file)) if os.path.exists(file) else None)
