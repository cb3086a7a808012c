"""Renders a mesh's state as static HTML: self-contained, without scripts, readable in both themes; a saved
notebook keeps it.

Ranks are laid out by their named axes: the innermost one across, the next one down, outer ones as blocks with
a title.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

from monarch_nb._display.style import style_for
from monarch_nb._display.template import Markup, joined
from monarch_nb._display.template import render as fill
from monarch_nb._units import duration, percent_text, size_text
from monarch_nb.status import HostStatus, MeshStatus, RankStatus, rank_text

ROW = 32
"""Number of ranks per row of a single long dimension."""
LARGE, MEDIUM = 16, 128
"""Maximum numbers of ranks for which a square shows number and state, and only the number."""
LETTERS = {
    "starting": "s",
    "idle": "",
    "busy": "b",
    "debugging": "d",
    "unresponsive": "?",
    "stopping": "e",
    "stopped": "e",
    "lost": "x",
}
"""Letters in the squares, so that a state isn't shown by colour alone."""


def render(status: MeshStatus, ended: str = "") -> str:
    """Return the HTML of a mesh's state.

    Args:
        ended: why there's nothing more to come, if so.
    """
    states = ", ".join(f"{len(ranks)} {state}" for state, ranks in _by_state(status).items())
    card = fill(
        "card.html",
        name=status.name,
        shape=", ".join(f"{label}={size}" for label, size in status.sizes),
        health=status.health,
        states=states,
        hosts=joined([fill("card_host.html", text=_host_text(h)) for h in status.hosts]),
        grid=joined([_block(status, *block) for block in _blocks(status.sizes)]),
        troubles=joined(
            [
                fill("card_trouble.html", text=f"rank {r.rank} {r.state}: {r.reason}")
                for r in _troubled(status)
            ]
        ),
        when=time.strftime("%Y-%m-%d %H:%M:%S"),
        ended=f"; {ended}" if ended else "",
    )
    return style_for(card, "card.css") + card


def _by_state(status: MeshStatus) -> dict[str, list[RankStatus]]:
    found: dict[str, list[RankStatus]] = {}
    for rank in status.ranks:
        found.setdefault(rank.state, []).append(rank)
    return found


def _troubled(status: MeshStatus) -> list[RankStatus]:
    return [r for r in status.ranks if r.reason][:20]


def _host_text(host: HostStatus) -> str:
    parts = [
        f"{host.hostname} {host.state}",
        f"{host.num_cores} cores" + percent_text(host.cpu_percent, " {}"),
    ]
    if host.memory_used_bytes is not None:
        parts.append(f"{size_text(host.memory_used_bytes)} of {size_text(host.memory_total_bytes)}")
    parts += [
        f"GPU {g.index} {percent_text(g.utilization_percent)} {size_text(g.memory_used_bytes)}"
        for g in host.gpus
    ]
    if host.environment:
        parts.append(f"environment {host.environment}")
    if host.differs:
        parts.append(f"differs: {host.differs}")
    return ", ".join(parts)


def _blocks(sizes: Sequence[tuple[str, int]]) -> list[tuple[str, list[tuple[str, list[int]]]]]:
    """Return the blocks of squares: a title, and rows with a label and their ranks.

    >>> _blocks([("hosts", 2), ("gpus", 2)])
    [('', [('hosts 0', [0, 1]), ('hosts 1', [2, 3])])]
    """
    if len(sizes) == 1:
        num = sizes[0][1]
        return [
            (
                "",
                [
                    ("" if num <= ROW else str(i), list(range(i, min(i + ROW, num))))
                    for i in range(0, num, ROW)
                ],
            )
        ]
    *outer, (row_label, num_rows), (_, num_columns) = sizes
    blocks = []
    for number, point in enumerate(product(*(range(size) for _, size in outer))):
        title = ", ".join(f"{label} {i}" for (label, _), i in zip(outer, point, strict=True))
        first = number * num_rows * num_columns
        rows = [
            (f"{row_label} {i}", list(range(first + i * num_columns, first + (i + 1) * num_columns)))
            for i in range(num_rows)
        ]
        blocks.append((title, rows))
    return blocks


def _block(status: MeshStatus, title: str, rows: list[tuple[str, list[int]]]) -> Markup:
    size = "large" if len(status.ranks) <= LARGE else "medium" if len(status.ranks) <= MEDIUM else "small"
    lines = [
        fill("card_row.html", label=label, cells=joined([_cell(status.ranks[r], size) for r in ranks]))
        for label, ranks in rows
    ]
    return fill("card_block.html", title=title, size=size, rows=joined(lines))


def _cell(rank: RankStatus, size: str) -> Markup:
    mark = LETTERS.get(rank.state, "")
    text = {"large": f"{rank.rank} {rank.state}", "medium": f"{rank.rank}{mark}"}.get(size, mark)
    about = rank_text(rank) if rank.doing else f"{rank.state}{': ' + rank.reason if rank.reason else ''}"
    since = f" for {duration(max(0.0, time.time() - rank.since))}" if rank.since else ""
    return fill("card_cell.html", state=rank.state, text=text, title=f"rank {rank.rank} {about}{since}")
