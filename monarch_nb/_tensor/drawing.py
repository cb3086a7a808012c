"""Draws a tensor of a mesh in a notebook: the part at each point of the grid. It asks the ranks nothing."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence

from monarch_nb._tensor.metadata import Meta

MOST_CELLS = 256
"""Maximum number of points of a grid that is drawn."""


def parts(meta: Meta) -> list[str]:
    """Return the part of the tensor on each rank of the grid, in the grid's order: `[0:4, :]`.

    Example:
        >>> parts(meta)                                      # doctest: +SKIP
        ['[0:2, :]', '[2:4, :]']
    """
    return [_part(meta, point) for point in itertools.product(*map(range, meta.grid.shape))]


def _part(meta: Meta, point: Sequence[int]) -> str:
    if meta.placements is None:
        return f"its own {list(meta.size)}"
    bounds = [(0, size) for size in meta.size]
    combined: dict[str, None] = {}
    for at, axis, placement in zip(point, meta.grid.shape, meta.placements, strict=True):
        if placement.is_partial():
            combined[placement.reduce_op] = None
        if placement.is_shard():
            first, last = bounds[placement.dim]
            bounds[placement.dim] = _chunk(first, last, at, axis)
    pairs = zip(bounds, meta.size, strict=True)
    texts = [":" if each == (0, size) else f"{each[0]}:{each[1]}" for each, size in pairs]
    how = " and ".join(_COMBINED.get(each, f"combined by {each}") for each in combined)
    return f"[{', '.join(texts)}]" + (f" to be {how}" if how else "")


_COMBINED = {"sum": "summed", "avg": "averaged"}


def _chunk(first: int, last: int, at: int, num: int) -> tuple[int, int]:
    """Return the bounds of one of `num` parts, as `torch.chunk` makes them: the last ones may be shorter."""
    step = -(-(last - first) // num)
    return min(first + at * step, last), min(first + (at + 1) * step, last)


def rows(meta: Meta) -> list[list[str]]:
    """Return the grid as a table with a header; the last axis is horizontal."""
    grid = meta.grid
    *outer, across = grid.names
    found = parts(meta)
    num = grid.shape[-1]
    points = itertools.product(*map(range, grid.shape[:-1]))
    table = [["", *(f"{across}={n}" for n in range(num))]]
    for n, point in enumerate(points):
        label = ", ".join(f"{name}={at}" for name, at in zip(outer, point, strict=True))
        table.append([label, *found[n * num : (n + 1) * num]])
    return table


def html_of(meta: Meta, text: str) -> str:
    """Return the HTML of a tensor: its metadata, and the location of its parts.

    Args:
        text: the tensor's values and type, as text.
    """
    head = f"<pre>{html.escape(text)}</pre>"
    if len(meta.grid.ranks) > MOST_CELLS:
        return head
    first, *rest = rows(meta)
    lines = [_row(first, "th"), *(_row(row, "td") for row in rest)]
    return f"{head}<table>{''.join(lines)}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    label, *others = map(html.escape, cells)
    return f"<tr><th>{label}</th>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in others) + "</tr>"
