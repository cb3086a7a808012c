"""Renders a cell's snapshot as HTML: self-contained, without scripts, in the theme's colours.

Structure comes from the files in `templates/`. Tabs are radio buttons and CSS; where a front end drops the
styles (GitHub, untrusted notebooks) the panels stand below each other, each after its ranks, and lines are
lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb._display import ansi
from monarch_nb._display.cell_text import cut_line, timing
from monarch_nb._display.displays import Display, panels_of, stretches
from monarch_nb._display.errors import ErrorGroup
from monarch_nb._display.fold import NOTE, Row, prefix_of
from monarch_nb._display.progress import CellState, progress_text, strip_shown
from monarch_nb._display.style import style_for
from monarch_nb._display.template import Markup, joined
from monarch_nb._display.template import render as fill
from monarch_nb._shape.rank_set import name_ranks
from monarch_nb._units import elapsed_text

if TYPE_CHECKING:
    from monarch_nb._display.cell_view import Snapshot

MAX_BARS = 256
LONG_LINES = 40
"""Longer output scrolls: the box is about 30 lines high, and can be enlarged."""

_EMPTY = Markup("")


def render(snapshot: Snapshot) -> str:
    """Return the HTML of a snapshot; empty when there is nothing to show."""
    body = joined(
        [
            _body(snapshot),
            _results(snapshot),
            *(_error(group, len(snapshot.errors)) for group in snapshot.errors),
            _timing(snapshot.state) if snapshot.state is not None else _EMPTY,
            fill("caption.html", label=snapshot.caption) if snapshot.caption else _EMPTY,
        ]
    )
    if not body and not snapshot.title:
        return ""
    title = fill("title.html", title=snapshot.title) if snapshot.title else _EMPTY
    shown = title + body
    return fill("cell.html", style=style_for(shown, "output.css"), body=Markup(shown))


def _body(snapshot: Snapshot) -> Markup:
    """Put lines and displays below each other, in their order; unfinished lines come last."""
    parts = stretches(snapshot.body)
    if parts[-1][1]:
        parts.append(([], []))
    unfinished = [_row(row, snapshot.prefix, " mno-partial") for row in snapshot.partial_rows]
    blocks: list[Markup] = []
    for number, (lines, displays) in enumerate(parts, 1):
        rows = [_row(row, snapshot.prefix) for row in lines]
        blocks.append(_block(rows + unfinished if number == len(parts) else rows))
        blocks.append(_displays(f"{snapshot.key}-d{number}", displays, snapshot.prefix))
    return joined(blocks)


def _block(lines: list[Markup]) -> Markup:
    """Join lines; explicit line ends are kept where styles are dropped. Long output is put into a scrolling
    box, which shows its end.
    """
    if not lines:
        return _EMPTY
    rows = fill("rows.html", rows=Markup("\n".join(lines)))
    num_lines = len(lines) + sum(line.count("\n") for line in lines)
    return fill("long.html", rows=rows, label=f"{num_lines:,} lines") if num_lines > LONG_LINES else rows


def _row(row: Row, prefix: bool, extra: str = "") -> Markup:
    if row.stream == NOTE:
        return fill("note.html", text=row.text)
    kind = ("stderr" if row.stream == "stderr" else "stdout") + extra
    return _line(row.ranks, Markup(ansi.to_html(cut_line(row.text))), prefix, kind)


def _line(ranks: tuple[int, ...], text: Markup, prefix: bool, kind: str) -> Markup:
    label = fill("ranks.html", ranks=prefix_of(ranks)) if prefix else _EMPTY
    return fill("row.html" if prefix else "bare_row.html", kind=kind, ranks=label, text=text)


def _displays(name: str, displays: Iterable[Display], prefix: bool) -> Markup:
    return joined(
        [
            _tabs(
                f"{name}-{number}",
                [(ranks, joined([bundle.html() for bundle in bundles])) for ranks, bundles in panels],
                prefix,
            )
            for number, panels in enumerate(panels_of(displays))
        ]
    )


def _results(snapshot: Snapshot) -> Markup:
    if any(result.bundle.rich_type for result in snapshot.results):
        panels = [(result.ranks, result.bundle.html()) for result in snapshot.results]
        return _tabs(f"{snapshot.key}-r", panels, snapshot.prefix)
    return _block([_result_line(result, snapshot.prefix) for result in snapshot.results])


def _result_line(result: Display, prefix: bool) -> Markup:
    return _line(result.ranks, Markup(ansi.to_html(result.bundle.text())), prefix, "result")


def _tabs(name: str, panels: list[tuple[tuple[int, ...], Markup]], prefix: bool) -> Markup:
    if not panels:
        return _EMPTY
    if len(panels) == 1:
        ranks, content = panels[0]
        label = fill("caption.html", label=name_ranks(ranks)) if prefix else _EMPTY
        return fill("panel.html", label=label, content=content)
    tabs = [
        fill(
            "tab.html",
            id=f"mno-{name}-{position}",
            name=f"mno-{name}",
            checked=Markup(" checked") if position == 0 else _EMPTY,
            label=name_ranks(ranks),
            content=content,
        )
        for position, (ranks, content) in enumerate(panels)
    ]
    return fill("tabs.html", tabs=joined(tabs))


def _error(group: ErrorGroup, num_groups: int) -> Markup:
    marked = group.first and num_groups > 1
    return fill(
        "error.html",
        open=Markup(" open") if group.first else _EMPTY,
        headline=group.headline(),
        mark=fill("mark.html") if marked else _EMPTY,
        traceback=Markup(ansi.to_html(group.traceback.rstrip())),
    )


def _timing(state: CellState) -> Markup:
    if progress_text(state):
        percent = 100 * state.num_over // len(state.ranks)
        return fill("progress.html", percent=percent, text=timing(state))
    if not strip_shown(state):
        return _EMPTY
    slowest = max(state.seconds.values())
    bars = [
        fill(
            "bar.html",
            percent=max(4, round(100 * seconds / slowest)),
            title=f"rank {rank}: {elapsed_text(seconds)}",
        )
        for rank, seconds in sorted(state.seconds.items())
    ]
    shown = joined(bars) if len(bars) <= MAX_BARS else _EMPTY
    return fill("strip.html", bars=shown, text=timing(state))
