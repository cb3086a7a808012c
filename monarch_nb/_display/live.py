"""Keeps a cell's display up to date while the cell runs, at most ten times a second.

The thread that receives events only sets a flag. One thread for all cells looks at the flags ten times a
second and publishes; a cell that ends before that publishes once, from `finish`. Large displays rest longer,
so that no cell takes more than `BYTES_PER_S` (Jupyter's server cuts a kernel off at 1 MB/s).

Threads and locks: `_publishing` is held to publish, and `finish` sets its flag under it, so after `finish`
the thread publishes nothing but what comes late. The view's own lock is never held while publishing.

Routing: ipykernel sends what is displayed or printed to the cell whose context the thread carries, or else to
the cell that ran last. So a publisher is made in its cell and keeps that context for the first display and
for text. Updates go by display id and find their output from anywhere; they are sent as part of the cell that
runs now, because clients that execute notebooks (nbclient, papermill) only listen to that one.

IPython is looked for only in `sys.modules`: a program that did not import it gets plain text.
"""

from __future__ import annotations

import contextvars
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TextIO

from monarch_nb._display.outputs import BLANK, Output
from monarch_nb._display.progress import PROGRESS_AFTER_S, CellState, progress_text
from monarch_nb._protocol.shown import MimeBundle

INTERVAL_S = 0.1
BYTES_PER_S = 400_000
LINGER_S = 5.0


class View(Protocol):
    """The interface of views that `LiveDisplay` can show: a `CellView`, or a `StackView` of several."""

    @property
    def version(self) -> int: ...
    def listen(self, listener: Callable[[], None] | None) -> None: ...
    def close(self) -> None: ...
    def state(self) -> CellState: ...
    def next_tick_s(self) -> float | None: ...
    def visible(self) -> bool: ...
    def outputs(self) -> list[Output]: ...
    def drain(self, *, final: bool = True) -> str: ...
    def closing_text(self) -> str: ...
    def unfinished_text(self) -> str: ...
    def leave(self, why: str) -> None: ...


class Publisher(Protocol):
    """The interface of publishers, which write a view to a front end. Calls never overlap; any thread may
    make them.
    """

    def publish(self, view: View, *, final: bool) -> int:
        """Write the view to the front end; return the number of bytes. `final`: the cell has ended; late
        output follows in further final calls.
        """


class NotebookPublisher:
    """The outputs of a notebook cell: one, unless the front end draws some of it. For front ends that show
    HTML.

    Outputs can be added and replaced, but not inserted. So the first always shows what comes first, and so
    on: when something comes in between, for a rank lags, all behind it move on by one.

    While the cell runs, the last page's metadata say what becomes of it if the kernel should go: our
    JupyterLab extension then writes that into the page, for a kernel that is restarted can't: JupyterLab
    doesn't listen to it any more.
    """

    def __init__(self) -> None:
        self._display_id = f"monarch-nb-{secrets.token_hex(8)}"
        self._context = contextvars.copy_context()
        self._version = -1
        self._shown: list[tuple[str, str]] = []
        """What each output shows: its key, and what becomes of the cell."""

    def publish(self, view: View, *, final: bool) -> int:
        """Show the view's outputs where they aren't shown already."""
        version = view.version
        if final and version == self._version:
            return 0
        if not self._shown and not view.visible():
            return 0  # a cell without output: nothing to render
        outputs = view.outputs()
        self._version = version
        last = max((place for place, output in enumerate(outputs) if output.is_page), default=-1)
        rest = "" if final else view.unfinished_text()
        outputs += [BLANK] * (len(self._shown) - len(outputs))
        return sum(
            self._show(place, output, rest if place == last else "") for place, output in enumerate(outputs)
        )

    def _show(self, place: int, output: Output, rest: str) -> int:
        """Show an output in its place, unless it's there already; return how many bytes that took."""
        if self._shown[place : place + 1] == [(output.key, rest)]:
            return 0
        metadata = {**output.metadata, "monarch_nb": {"unfinished": rest}} if rest else output.metadata
        self._send(f"{self._display_id}-{place}", output.data, metadata, known=place < len(self._shown))
        self._shown[place : place + 1] = [(output.key, rest)]
        return output.num_bytes

    def _send(self, display_id: str, data: MimeBundle, metadata: MimeBundle, *, known: bool) -> None:
        from IPython.display import display, update_display

        data, metadata = dict(data), dict(metadata)
        if known:
            update_display(data, raw=True, metadata=metadata, display_id=display_id)
        else:
            self._context.copy().run(display, data, raw=True, metadata=metadata, display_id=display_id)


class TerminalPublisher:
    """A publisher to a text stream: it writes lines once they are complete, and the rest at the end. On a
    terminal, a progress line below them.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty()
        self._context = contextvars.copy_context()
        self._progress = ""
        self._is_closed = False

    def publish(self, view: View, *, final: bool) -> int:
        """Print the new lines."""
        if not self._progress and not view.visible():
            return 0
        text = view.drain(final=final) + (view.closing_text() if final and not self._is_closed else "")
        self._is_closed |= final
        progress = "" if final or not self._terminal else progress_text(view.state())
        written = (
            (("\r\x1b[2K" if self._progress else "") + text + progress)
            if text or progress != self._progress
            else ""
        )
        if written:
            self._progress = progress
            self._context.copy().run(self._write, written)
        return len(written)

    def _write(self, text: str) -> None:
        if getattr(self._stream, "closed", False):  # what comes late may find it so
            return
        self._stream.write(text)
        self._stream.flush()


class LiveDisplay:
    """A display of a view that is kept up to date until `finish`. Works as a context manager too.

    With MONARCH_NB_LIVE=0 in the environment it is shown once, at the end: for runners that keep only the
    first version of a display (nbval), or logs that should have one.

    >>> from monarch_nb._display import CellView
    >>> view = CellView([0, 1], world_size=2)
    >>> with LiveDisplay(view):
    ...     view.output(0, "stdout", "hi\\n"); view.output(1, "stdout", "hi\\n")
    [0-1] hi
    """

    def __init__(
        self, view: View, *, publisher: Publisher | None = None, interval_s: float = INTERVAL_S,
        on_tick: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._view = view
        self._publisher = choose_publisher() if publisher is None else publisher
        self._interval_s = interval_s
        self._on_tick = on_tick
        """Called by the clock at each update; must be quick."""
        self._publishing = threading.Lock()
        self._starting = threading.Lock()
        self._finished = False
        self._changed = False
        self._ending = False
        self._late = False
        self._shown_by_clock = False
        self._rest_until = 0.0
        self._next_change_at: float | None = time.monotonic() + PROGRESS_AFTER_S
        if os.environ.get("MONARCH_NB_LIVE", "1") != "0":
            view.listen(self._on_change)

    @property
    def shows_part(self) -> bool:
        """Whether of many lines the first and the last ones are shown. Text that is printed has all."""
        return isinstance(self._publisher, NotebookPublisher)

    def __enter__(self) -> LiveDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        """Close the view and publish it for the last time, on the caller's thread. Further calls do
        nothing.
        """
        with self._publishing:
            if self._finished:
                return
            self._finished = True
            self._view.listen(None)
            self._view.close()
            self._publisher.publish(self._view, final=True)
        self._view.listen(self._on_late)

    def _on_late(self) -> None:
        """Publish the view again, in a moment, with everything that arrives after its end until then."""
        with self._starting:
            if self._late:
                return
            self._late = True
        timer = threading.Timer(self._interval_s, self._publish_late)
        timer.daemon = True
        timer.start()

    def _publish_late(self) -> None:
        self._late = False
        with self._publishing:
            self._publisher.publish(self._view, final=True)

    def update(self) -> None:
        """Publish the view, on the caller's thread."""
        with self._publishing:
            if not self._finished and self._view.visible():
                self._publisher.publish(self._view, final=False)

    def leave(self, why: str) -> None:
        """Write into the display that it is no longer updated, and publish it for the last time, on the
        caller's thread.
        """
        self._view.leave(why)
        self.finish()
        self._view.listen(None)

    def finish_soon(self) -> None:
        """Finish the display in the background; returns at once."""
        self._ending = True
        self._on_change()

    def _on_change(self) -> None:
        self._changed = True
        if not self._shown_by_clock:
            self._shown_by_clock = True
            _clock.add(self)

    def tick(self) -> bool:
        """Publish if something has changed; return whether to be called again. Called by the clock's
        thread.
        """
        if self._ending:
            self.finish()
        if self._finished:
            return False
        if self._on_tick is not None:
            self._on_tick()
        now = time.monotonic()
        due = self._changed or (self._next_change_at is not None and now >= self._next_change_at)
        if due and now >= self._rest_until:
            self._changed = False
            with self._publishing:
                if self._finished:
                    return False
                size_bytes = self._publisher.publish(self._view, final=False) if self._view.visible() else 0
            self._rest_until = now + max(self._interval_s, size_bytes / BYTES_PER_S)
            next_s = self._view.next_tick_s()
            self._next_change_at = None if next_s is None else time.monotonic() + next_s
        return True


class _Clock:
    """The one thread that updates all displays: a cell that ends at once needn't start and wake a thread.

    It looks every `INTERVAL_S` while there are displays, and for `LINGER_S` afterwards; then it sleeps until
    one is added.
    """

    def __init__(self) -> None:
        self._displays: list[LiveDisplay] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._asleep = False

    def add(self, display: LiveDisplay) -> None:
        """Tick a display until it has finished."""
        with self._lock:
            self._displays.append(display)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="monarch-nb-display", daemon=True)
                self._thread.start()
            asleep = self._asleep
        if asleep:
            self._wake.set()

    def displays(self) -> list[LiveDisplay]:
        """Return the displays that have shown output and aren't finished."""
        with self._lock:
            return list(self._displays)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(INTERVAL_S)
            with self._lock:
                displays = list(self._displays)
            for display in displays:
                if not _ticks_on(display):
                    with self._lock:
                        self._displays.remove(display)
            if displays:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER_S:
                self._sleep()

    def _sleep(self) -> None:
        with self._lock:
            if self._displays:
                return
            self._asleep = True
            self._wake.clear()
        self._wake.wait()
        self._asleep = False


def _ticks_on(display: LiveDisplay) -> bool:
    """Tick a display; one whose stream is closed is dropped."""
    try:
        return display.tick()
    except Exception:
        traceback.print_exc()
        return False


_clock = _Clock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _clock.__init__())  # type: ignore[misc]


def leave_displays(why: str) -> None:
    """Mark all unfinished displays as no longer updated: this program is about to end."""
    for display in _clock.displays():
        display.leave(why)


def choose_publisher() -> Publisher:
    """Return the publisher for this program's environment: a kernel's front end, or text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookPublisher() if getattr(shell, "kernel", None) is not None else TerminalPublisher()
