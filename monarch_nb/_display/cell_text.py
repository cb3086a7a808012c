"""Renders a cell's snapshot as text: for terminals, logs, nbconvert and readers of the raw notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb._display import ansi
from monarch_nb._display.displays import Display
from monarch_nb._display.errors import errors_text
from monarch_nb._display.fold import Row, prefix_of
from monarch_nb._display.progress import CellState, progress_text, strip_text

if TYPE_CHECKING:
    from monarch_nb._display.cell_view import Snapshot

MAX_LINE_CHARS = 10_000


def render(snapshot: Snapshot) -> str:
    """Return the whole cell as text, without colours and without a line end at the end."""
    lines = [row_text(row, snapshot.prefix) for row in (*snapshot.body, *snapshot.partial_rows)]
    title = [snapshot.title] if snapshot.title else []
    return "\n".join([*title, *lines, *_closing(snapshot, colour=False)])


def render_closing(snapshot: Snapshot, *, colour: bool) -> str:
    """Return displays and what comes after all output; it ends in a line end unless it is empty."""
    blocks = [row_text(row, snapshot.prefix) for row in snapshot.body]
    return "".join(f"{block}\n" for block in [*blocks, *_closing(snapshot, colour=colour)])


def render_printed(rows: Iterable[Row | Display], prefix: bool) -> str:
    """Return lines as they were printed, colours and all, and displays between them; each has a line end."""
    return "".join(
        [
            f"{row_text(row, prefix)}\n"
            if isinstance(row, Display)
            else f"{prefix_of(row.ranks) if prefix else ''}{row.text}\n"
            for row in rows
        ]
    )


def row_text(row: Row | Display, prefix: bool) -> str:
    """Return one output line, or one display, with its ranks."""
    if isinstance(row, Display):
        return _labelled(row, prefix)
    return f"{prefix_of(row.ranks) if prefix else ''}{cut_line(ansi.strip(row.text))}"


def cut_line(line: str) -> str:
    """Return a line, cut at `MAX_LINE_CHARS`."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:MAX_LINE_CHARS]} ... {len(line) - MAX_LINE_CHARS:,} more characters not shown"


def timing(state: CellState) -> str:
    """Return the progress line of a running cell or the times of a finished one, or nothing."""
    return progress_text(state) or strip_text(state)


def _closing(snapshot: Snapshot, *, colour: bool) -> Iterable[str]:
    for result in snapshot.results:
        yield _labelled(result, snapshot.prefix)
    if snapshot.errors:
        yield errors_text(snapshot.errors, colour=colour).rstrip("\n")
    line = timing(snapshot.state) if snapshot.state is not None else ""
    if line:
        yield line
    if snapshot.caption:
        yield f"{snapshot.caption}:"


def _labelled(display: Display, prefix: bool) -> str:
    """Put the ranks before a text; its further lines are indented as much, so that matrices stay aligned."""
    label = prefix_of(display.ranks) if prefix else ""
    return label + display.bundle.text().replace("\n", "\n" + " " * len(label))
