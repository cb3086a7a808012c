"""The single display of one cell: what its ranks print, show, return and raise.

`CellView` takes events from any thread in any order and renders what it holds at that moment, as text and as
HTML. It knows nothing of where the events come from or where the rendering goes (`LiveDisplay` does), and
never waits.

One lock guards all state; it is held to take an event or a snapshot, never while rendering or calling a
listener. What is rendered is one immutable `Snapshot`; `cell_text` and `cell_html` are pure functions of it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from monarch_nb._display import cell_html, cell_text
from monarch_nb._display.bars import merge_bars
from monarch_nb._display.bundle import Bundle
from monarch_nb._display.displays import Display, Made, by_value, folded, placed
from monarch_nb._display.errors import ErrorGroup, ErrorInfo, fold_errors
from monarch_nb._display.fold import DISPLAY, NOTE, Fold, Row, joined_rows
from monarch_nb._display.lines import Lines
from monarch_nb._display.outputs import Output, outputs_of
from monarch_nb._display.progress import PROGRESS_AFTER_S, CellState
from monarch_nb._protocol.shown import MimeBundle

PROGRESS_EVERY_S = 1.0
_NUM_HOLDS = 3
"""For how many updates a line in a terminal waits for ranks that haven't printed it yet: lines that are
written can't be folded any more.
"""


class Snapshot(msgspec.Struct, frozen=True):
    """All of a cell at one moment, folded. `key` makes ids in its HTML unique; `prefix`: are ranks named?

    A part of a cell has no `state`; its `caption` says which ranks are shown next, in an output of its own.
    """

    title: str
    key: str
    prefix: bool
    body: list[Row | Display]
    partial_rows: list[Row]
    results: list[Display]
    errors: list[ErrorGroup]
    state: CellState | None
    caption: str = ""


class CellView:
    """The collector and renderer of the output of a cell's ranks.

    `group` says how lines are shown: "fold", "order" as they come, "rank" by rank, "none" without ranks.

    >>> view = CellView([0, 1], world_size=2)
    >>> view.output(0, "stdout", "hi\\n")
    >>> view.result(0, {"text/plain": "42"}); view.result(1, {"text/plain": "42"})
    >>> print(view.text())
    [0] hi
    [0-1] 42
    """

    def __init__(
        self,
        ranks: Sequence[int],
        world_size: int,
        *,
        title: str = "",
        more_hint: str = "%mesh logs",
        max_rows: int = 1000,
        group: str = "fold",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._ranks = tuple(ranks)
        self._prefix = world_size > 1
        self._title = title
        self._key = secrets.token_hex(4)
        self._clock = clock
        self._prefix = self._prefix and group != "none"
        self._fold: Fold | Lines
        if group == "fold":
            self._fold = Fold(ranks, max_rows=max_rows, more_hint=more_hint, prefix=self._prefix)
        else:
            self._fold = Lines(
                ranks, prefix=self._prefix, by_rank=group == "rank", max_rows=max_rows, more_hint=more_hint
            )
        self._displays: dict[int, list[Made]] = {rank: [] for rank in ranks}
        self._bars: dict[int, dict[str, str]] = {}
        """Progress bars by rank, in the order in which they came."""
        self._to_clear: set[int] = set()
        """Ranks whose output is cleared when they display something new."""
        self._results: dict[int, Bundle] = {}
        self._errors: list[ErrorInfo] = []
        self._done: dict[int, float] = {}
        self._started_at: float | None = None
        self._ended_at: float | None = None
        self._closed = False
        self._waits = ""
        self._goes_on: Callable[[], str] | None = None
        self._version = 0
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Register a function that is called after each change, on the thread that made it. It must be quick
        and not raise.
        """
        self._listener = listener

    @property
    def version(self) -> int:
        """Grows with each change; equal versions render alike, but for the elapsed time."""
        return self._version

    @property
    def title(self) -> str:
        """The title above the cell's output."""
        return self._title

    def retitle(self, title: str) -> None:
        """Change the title above the cell's output."""
        with self._lock:
            self._title = title
            self._version += 1
        self._tell()

    def describe_rest(self, goes_on: Callable[[], str]) -> None:
        """Register a function that describes how the cell continues when its display is left before the
        end.
        """
        self._goes_on = goes_on

    def unfinished_text(self) -> str:
        """Return a sentence on how the cell continues when it's no longer displayed; empty if it's over."""
        return self._goes_on() if self._goes_on is not None and self.state().running else ""

    def leave(self, why: str) -> None:
        """Mark the cell as no longer displayed, and print how it continues."""
        rest = self.unfinished_text()
        if rest:
            with self._lock:
                self._fold.finish()  # incomplete lines are shown above the note
            self.note(f"{why}; {rest}")

    def started(self, ago_s: float = 0.0) -> None:
        """Start the cell's clock, backdated by some seconds. Otherwise the first event starts it."""
        with self._lock:
            if self._started_at is None:
                self._started_at = self._clock() - max(0.0, ago_s)
            self._touch()
        self._tell()

    def wait_for(self, text: str) -> None:
        """Show what the cell waits for; an empty text: it no longer waits."""
        with self._lock:
            self._waits = text
            self._touch()
        self._tell()

    def output(self, rank: int, stream: str, text: str) -> None:
        """Add a piece of a rank's output."""
        with self._lock:
            self._clear_before(rank)
            self._fold.feed(rank, stream, text)
            self._touch()
        self._tell()

    def display(
        self,
        rank: int,
        mimebundle: MimeBundle,
        metadata: MimeBundle | None = None,
        display_id: str | None = None,
        update: bool = False,
    ) -> None:
        """Add a rank's display; with `update`, it replaces the rank's display of this id."""
        bundle = Bundle.of(mimebundle, metadata)
        with self._lock:
            self._clear_before(rank)
            shown = self._displays[rank]
            replaced = [made for made in shown if update and made.display_id == display_id]
            for made in replaced:
                made.bundle = bundle
            if not replaced:
                shown.append(Made(display_id, bundle))
                self._fold.mark(rank, shown[-1])
            self._touch()
        self._tell()

    def bar(self, rank: int, key: str, text: str) -> None:
        """Set the text of a rank's progress bar; empty: the bar is removed."""
        with self._lock:
            self._clear_before(rank)
            bars = self._bars.setdefault(rank, {})
            if text:
                bars[key] = text
            else:
                bars.pop(key, None)
            self._touch()
        self._tell()

    def _partial_rows(self) -> list[Row]:
        """Return unfinished lines and bars in their present state, with equal bars merged."""
        num_levels = max(map(len, self._bars.values()), default=0)
        bars = [
            Row((rank,), "stdout", list(bars.values())[level])
            for level in range(num_levels)
            for rank, bars in sorted(self._bars.items())
            if len(bars) > level
        ]
        waits = [Row((), NOTE, self._waits)] if self._waits and self._state().running else []
        return [*merge_bars([*self._fold.partial_rows(), *bars]), *waits]

    def clear(self, rank: int, *, wait: bool) -> None:
        """Remove a rank's output so far; with `wait`, when its next output arrives."""
        with self._lock:
            self._to_clear.add(rank)
            if not wait:
                self._clear_before(rank)
            self._touch()
        self._tell()

    def _clear_before(self, rank: int) -> None:
        if rank in self._to_clear:
            self._to_clear.discard(rank)
            self._fold.clear(rank)
            self._displays[rank] = []
            self._bars.pop(rank, None)

    def result(self, rank: int, bundle: MimeBundle | None) -> None:
        """Set the value of the last expression on a rank; None when it has none."""
        if bundle is None:
            return
        with self._lock:
            self._results[rank] = Bundle.of(bundle)
            self._touch()
        self._tell()

    def error(self, rank: int, error: ErrorInfo) -> None:
        """Set the error that a rank has raised; the rank has ended."""
        with self._lock:
            self._errors.append(error)
            self._touch()
            self._end_if_over()
        self._tell()

    def done(self, rank: int, seconds: float) -> None:
        """Mark a rank as ended, with its run time."""
        with self._lock:
            self._done[rank] = seconds
            self._touch()
            self._end_if_over()
        self._tell()

    def done_all(self, seconds: Mapping[int, float]) -> None:
        """Mark ranks as ended, with their run times."""
        with self._lock:
            self._done.update(seconds)
            self._touch()
            self._end_if_over()
        self._tell()

    def note(self, text: str) -> None:
        """Add a line that no rank has printed."""
        with self._lock:
            self._fold.say(text)
            self._touch()
        self._tell()

    def leave_out(self, num_lines: int) -> None:
        """Note that ranks have printed lines here that aren't known: they came too fast."""
        with self._lock:
            self._fold.leave_out(num_lines)
            self._touch()
        self._tell()

    def close(self) -> None:
        """Mark the cell as no longer waited for: unfinished lines are shown as lines. Later events are still
        shown.
        """
        with self._lock:
            self._fold.finish()
            self._closed = True
            self._touch()
            if self._ended_at is None:
                self._ended_at = self._clock()
        self._tell()

    def state(self) -> CellState:
        """Return the progress of the cell."""
        with self._lock:
            return self._state()

    def next_tick_s(self) -> float | None:
        """Return the seconds until the view changes without an event (progress); None: never."""
        if self._fold.is_holding:
            return 0.0
        state = self.state()
        if state.closed or not state.running or self._started_at is None:
            return None
        return PROGRESS_EVERY_S if state.shows_progress else PROGRESS_AFTER_S - state.elapsed_s

    def visible(self) -> bool:
        """Say whether there is anything to show."""
        with self._lock:
            state = self._state()
            content = self._fold.num_rows or any(self._displays.values()) or self._results or self._errors
            return bool(content or state.shows_progress or self._partial_rows() or cell_text.timing(state))

    def snapshot(self) -> Snapshot:
        """Return everything, folded."""
        with self._lock:
            return Snapshot(
                title=self._title,
                key=self._key,
                prefix=self._prefix,
                body=placed(merge_bars(self._fold.rows())),
                partial_rows=self._partial_rows(),
                results=[Display(ranks, bundle) for ranks, bundle in by_value(self._results)],
                errors=fold_errors(self._errors),
                state=self._state(),
            )

    def text(self) -> str:
        """Return the view as text, without colours."""
        return cell_text.render(self.snapshot())

    def html(self) -> str:
        """Return the view as self-contained HTML; empty when there is nothing to show."""
        return cell_html.render(self.snapshot())

    def outputs(self) -> list[Output]:
        """Return what a notebook shows, in order: one page, cut where the front end draws something."""
        return outputs_of(self.snapshot())

    def drain(self, *, final: bool = True) -> str:
        """Return the lines and displays completed since the last call, for a terminal; unless that's the end,
        what only some ranks have shown waits a little.
        """
        with self._lock:
            rows = self._fold.drain_rows(0 if final else _NUM_HOLDS)
            if not any(self._displays.values()):
                return joined_rows(rows, prefix=self._prefix)
            for made in (made for row in rows for made in row.shown):
                made.printed = made.bundle
            shown = placed(rows)
        return cell_text.render_printed(shown, self._prefix)

    def closing_text(self) -> str:
        """Return the text after the output lines: displays that have changed since they were printed,
        results, errors, times, with colours.
        """
        snapshot = self.snapshot()
        with self._lock:
            changed = folded(self._changed_rows())
        return cell_text.render_closing(replace(snapshot, body=changed), colour=True)

    def _changed_rows(self) -> list[Row]:
        return [
            Row((rank,), DISPLAY, made.token, (made,))
            for rank, shown in self._displays.items()
            for made in shown
            if made.printed is not None and made.printed != made.bundle
        ]

    def _touch(self) -> None:
        self._version += 1
        if self._started_at is None:
            self._started_at = self._clock()

    def _end_if_over(self) -> None:
        if self._ended_at is None and not self._state().running:
            self._ended_at = self._clock()

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener()

    def _state(self) -> CellState:
        start = self._started_at
        end = self._clock() if self._ended_at is None else self._ended_at
        return CellState(
            ranks=self._ranks,
            done=tuple(rank for rank in self._ranks if rank in self._done),
            failed=tuple(sorted({error.rank for error in self._errors})),
            seconds=dict(self._done),
            elapsed_s=0.0 if start is None else end - start,
            num_lines=self._fold.num_rows,
            closed=self._closed,
        )
