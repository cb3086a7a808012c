"""Renders a cell's snapshot as text: for terminals, logs, nbconvert and readers of the raw notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb._display import ansi
from monarch_nb._display.errors import errors_text
from monarch_nb._display.fold import Row, prefix_of
from monarch_nb._display.progress import CellState, progress_text, strip_text

if TYPE_CHECKING:
    from monarch_nb._display.cell_view import Snapshot

MAX_LINE_CHARS = 10_000


def render(snapshot: Snapshot) -> str:
    """Return the whole cell as text, without colours and without a line end at the end."""
    lines = [row_text(row, snapshot.prefix) for row in (*snapshot.rows, *snapshot.partial_rows)]
    title = [snapshot.title] if snapshot.title else []
    return "\n".join([*title, *lines, *_closing(snapshot, colour=False)])


def render_closing(snapshot: Snapshot, *, colour: bool) -> str:
    """Return the text after the output lines; it ends in a line end unless it is empty."""
    return "".join(f"{block}\n" for block in _closing(snapshot, colour=colour))


def row_text(row: Row, prefix: bool) -> str:
    """Return one output line with its ranks."""
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
    for ranks, bundles in snapshot.displays:
        for bundle in bundles:
            yield _labelled(ranks, bundle.text(), snapshot.prefix)
    for ranks, bundle in snapshot.results:
        yield _labelled(ranks, bundle.text(), snapshot.prefix)
    if snapshot.errors:
        yield errors_text(snapshot.errors, colour=colour).rstrip("\n")
    line = timing(snapshot.state)
    if line:
        yield line


def _labelled(ranks: tuple[int, ...], text: str, prefix: bool) -> str:
    """Put the ranks before a text; its further lines are indented as much, so that matrices stay aligned."""
    label = prefix_of(ranks) if prefix else ""
    return label + text.replace("\n", "\n" + " " * len(label))
