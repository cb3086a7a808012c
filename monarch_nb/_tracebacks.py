"""Filters tracebacks for users: frames of their own code and of libraries stay; those of this package, which
say nothing about the user's program, are removed.

`MONARCH_NB_TRACEBACKS=full` shows all: for faults of this package.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType

from monarch_nb._cells import name_of
from monarch_nb._frames import owner
from monarch_nb._frames.cells import is_of_kernel

MAX_LINKS = 10
"""Longer chains of errors, each the cause of the next, are cut in the middle."""
_FUTURES = os.path.join(os.sep, "concurrent", "futures", "_base.py")

_installed = False


class ShowsItself:
    """The mixin of errors that this package raises on purpose: their tracebacks show only the user's own
    frames, in notebooks and scripts.
    """

    _shown_as = ""
    """Name for display, if it isn't the class's."""

    def _render_traceback_(self) -> list[str]:
        assert isinstance(self, BaseException)
        return render(self)


class BadValue(ShowsItself, ValueError):
    """A ValueError caused by the caller's arguments, shown with the caller's lines."""

    _shown_as = "ValueError"


class BadType(ShowsItself, TypeError):
    """A TypeError caused by the caller's arguments, shown with the caller's lines."""

    _shown_as = "TypeError"


class BadIndex(ShowsItself, IndexError):
    """An IndexError caused by the caller's arguments, shown with the caller's lines."""

    _shown_as = "IndexError"


class BadKey(ShowsItself, KeyError):
    """A KeyError caused by the caller's arguments, shown with the caller's lines."""

    _shown_as = "KeyError"

    def __str__(self) -> str:
        return str(self.args[0])  # Python's own method would quote the sentence


class BadName(ShowsItself, AttributeError):
    """An AttributeError caused by the caller's code, shown with the caller's lines."""

    _shown_as = "AttributeError"


def render(error: BaseException) -> list[str]:
    """Return the traceback that a notebook shows: the error, and the reader's own lines that led there."""
    frames = [
        f"  {_place(f.filename)}, line {f.lineno}, in {f.name}\n    {f.line}"
        for f in traceback.extract_tb(error.__traceback__)
        if not is_hidden(f.filename) and not _only_hands_on(f.filename)
    ]
    return "\n".join([headline(error), *(["called from:"] if frames else []), *frames]).split("\n")


def headline(error: BaseException) -> str:
    """Return the first line about an error: its kind and its text."""
    return f"{getattr(error, '_shown_as', '') or type(error).__name__}: {error}"


def _place(filename: str) -> str:
    """Return a file as people know it: cells have a made-up name."""
    unknown = "a cell of this notebook" if is_of_kernel(filename) or filename.startswith("<") else filename
    return name_of(filename) or unknown


def _only_hands_on(filename: str) -> bool:
    """Say whether a frame is of a standard future's `result()`, which raises what it was given."""
    return _FUTURES in filename and os.environ.get("MONARCH_NB_TRACEBACKS") != "full"


def is_hidden(filename: str) -> bool:
    """Say whether a frame is of no use to the reader: of this package, or of what runs cells."""
    if os.environ.get("MONARCH_NB_TRACEBACKS") == "full":
        return False
    return owner.is_hidden(filename)


def shown_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that are hidden."""
    frames = []
    while trace is not None:
        if not is_hidden(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    found: TracebackType | None = None
    for each in reversed(frames):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found


def format_error(error: BaseException, trace: TracebackType | None) -> str:
    """Return an error as Python prints it, with those that have led to it, without hidden frames; empty if
    no frame is left.
    """
    found = traceback.TracebackException(type(error), error, trace)
    _shorten_chain(found)
    any_left = False
    for each in list(_chain(found)):
        each.stack[:] = [frame for frame in each.stack if not is_hidden(frame.filename)]
        any_left = any_left or bool(each.stack)
        if not each.stack:
            each.stack = None  # type: ignore[assignment]  # no header without frames
    return "".join(found.format()) if any_left else ""


def _chain(error: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    left: list[traceback.TracebackException | None] = [error]
    while left:
        each = left.pop()
        if each is not None:
            yield each
            left += [_before(each), *(each.exceptions or ())]  # except what `from None` hides


def _shorten_chain(error: traceback.TracebackException) -> None:
    """Leave out the middle of a long chain of errors."""
    links = [error]
    while (before := _before(links[-1])) is not None:
        links.append(before)
    num = len(links) - MAX_LINKS
    if num > 0:
        last, first = links[MAX_LINKS // 2 - 1], links[-MAX_LINKS // 2]
        last.__cause__ = first
        first.__notes__ = [*(first.__notes__ or ()), links_left_out(num)]


def _before(error: traceback.TracebackException) -> traceback.TracebackException | None:
    """Return the error that Python prints above this one."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def links_left_out(num: int) -> str:
    """Return the line that stands for the middle of a chain of errors."""
    return f"... {num:,} errors of this chain, each the cause of the next, are left out ..."


def hide_in_scripts() -> None:
    """Have Python print the errors of this package that nobody catches without its frames. In a notebook,
    they render themselves.
    """
    global _installed
    if _installed:
        return
    _installed = True
    hook, thread_hook = sys.excepthook, threading.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, _of_ours(error, trace))

    def show_in_thread(args: threading.ExceptHookArgs) -> None:
        trace = args.exc_traceback if args.exc_value is None else _of_ours(args.exc_value, args.exc_traceback)
        thread_hook(threading.ExceptHookArgs((args.exc_type, args.exc_value, trace, args.thread)))

    sys.excepthook = show
    threading.excepthook = show_in_thread


def _of_ours(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """Return the visible part of a traceback: of errors that this package raises on purpose, which can render
    themselves, the reader's frames.
    """
    left: list[tuple[BaseException | None, bool]] = [(error, False)]
    seen: set[int] = set()
    while left:
        each, explains_ours = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        is_ours = explains_ours or hasattr(each, "_render_traceback_")
        left += [(each.__cause__, is_ours), (each.__context__, is_ours)]
        if is_ours:
            each.__traceback__ = shown_frames(each.__traceback__)
    return shown_frames(trace) if hasattr(error, "_render_traceback_") else trace
