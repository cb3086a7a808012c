"""Renders a mesh's state as a table for terminals, by rich: `monarch-nb status`, `monarch-nb top`, `%mesh
top`.
"""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

from monarch_nb._shape import format_ranks
from monarch_nb._units import duration, percent_text, size_text
from monarch_nb.status import MeshStatus, RankStatus, collective_text

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_ROWS = 64
"""Maximum number of rows of the table of ranks; if there are more ranks, those in equal states share a
row.
"""
COLOURS = {
    "idle": "green",
    "busy": "cyan",
    "debugging": "yellow",
    "unresponsive": "red",
    "lost": "red bold",
    "starting": "dim",
}
_BARS = "▁▂▃▄▅▆▇█"


def table(status: MeshStatus, *below: RenderableType) -> RenderableType:
    """Return a mesh's state as a table for a rich console, and the text below it."""
    from rich.console import Group
    from rich.text import Text

    states = ", ".join(f"{state} {ranks}" for state, ranks in status.ranks_by_state().items())
    shape = ", ".join(f"{k}={v}" for k, v in status.sizes)
    colour = {"ok": "green", "busy": "cyan", "trouble": "red bold"}[status.health]
    head = Text.assemble((status.name, "bold"), f"  {shape}  ", (states, colour))
    lease = ""
    if status.idle_timeout_s:
        left = f", {duration(status.lease_left_s)} left" if status.lease_left_s is not None else ""
        lease = f"  lease {duration(status.idle_timeout_s)}{left}"
    up = Text(
        f"controller pid {status.pid}, up {duration(max(0.0, round(time.time() - status.started)))}{lease}",
        "dim",
    )
    return Group(head, up, _hosts(status), _ranks(status), *below)


def _hosts(status: MeshStatus) -> RenderableType:
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("host", "state", "cpu", "", "memory", "gpus", "ranks"):
        found.add_column(column)
    for host in status.hosts:
        gpus = "  ".join(
            f"{g.index}: {percent_text(g.utilization_percent)} {size_text(g.memory_used_bytes)} "
            + ("" if g.temperature_c is None else f"{g.temperature_c:.0f} C")
            for g in host.gpus
        )
        memory = (
            f"{size_text(host.memory_used_bytes)} of {size_text(host.memory_total_bytes)}"
            if host.memory_total_bytes
            else "n/a"
        )
        ranks = format_ranks(r.rank for r in status.ranks if r.host == host.index)
        found.add_row(
            host.hostname,
            host.state,
            percent_text(host.cpu_percent),
            sparkline(host.history.cpu_percent[-30:]),
            memory,
            gpus or str(host.num_gpus),
            ranks or "none",
        )
    return found


def _ranks(status: MeshStatus) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, pad_edge=False, header_style="dim")
    for column, side in (
        ("ranks", "left"),
        ("state", "left"),
        ("for", "right"),
        ("cpu", "right"),
        ("memory", "right"),
        ("doing", "left"),
    ):
        found.add_column(column, justify=side, no_wrap=column != "doing")  # type: ignore[arg-type]
    now = time.time()
    for ranks in _folded(status.ranks):
        first = ranks[0]
        cpu = [r.cpu_percent for r in ranks if r.cpu_percent is not None]
        memory = [r.memory_bytes for r in ranks if r.memory_bytes is not None]
        found.add_row(
            format_ranks(r.rank for r in ranks),
            Text(first.state, COLOURS.get(first.state, "")),
            duration(max(0.0, round(now - min(r.since for r in ranks)))) if first.since else "",
            f"{sum(cpu) / len(cpu):.0f}%" if cpu else "",
            size_text(round(sum(memory) / len(memory))) if memory else "",
            Text(_doing(first)),
        )
    return found


def _folded(ranks: tuple[RankStatus, ...]) -> list[list[RankStatus]]:
    """Return ranks one by one, or grouped by activity if there are many."""
    if len(ranks) <= MAX_ROWS:
        return [[r] for r in ranks]
    found: dict[object, list[RankStatus]] = {}
    for rank in ranks:
        found.setdefault((rank.state, rank.doing, rank.line, rank.reason), []).append(rank)
    return list(found.values())[:MAX_ROWS]


def _doing(rank: RankStatus) -> str:
    if rank.reason:
        return rank.reason
    parts = [rank.doing]
    if rank.collective is not None:
        parts.append(collective_text(rank.collective))
    if rank.line:
        parts.append(rank.line)
    if not rank.doing and rank.last_line:
        parts.append(f"| {rank.last_line}")
    if rank.num_queued:
        parts.append(f"{rank.num_queued} wait")
    return "  ".join(p for p in parts if p)


def sparkline(shares: tuple[float | None, ...]) -> str:
    """Return percentages as a row of bars.

    >>> sparkline((0.0, 50.0, 100.0, None))
    '▁▅█ '
    """
    return "".join(" " if s is None else _BARS[min(7, round(s / 100 * 7.4))] for s in shares)


def text(status: MeshStatus, width: int = 100, *, colour: bool = False) -> str:
    """Return the table as text, with terminal colours or without."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    console.print(table(status))
    return file.getvalue().rstrip("\n")
