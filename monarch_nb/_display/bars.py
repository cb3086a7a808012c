"""Merges progress bars of many ranks: bars that are equal but for their progress become one bar from the
slowest to the fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from monarch_nb._display.fold import Row

_WITH_TOTAL = re.compile(
    r"^(?P<what>.*?)(?P<percent>[ \d]{2}\d)%\|[^|]*\| (?P<n>[\d.]+)(?P<unit>[kMGTP]?)/(?P<total>\S+) "
    r"\[(?P<times>[^,\]]*)(?P<rest>.*)\]$"
)
_WITHOUT_TOTAL = re.compile(
    r"^(?P<what>.*?)(?P<n>[\d.]+)(?P<unit>[kMGTP]?)(?P<total>[a-zA-Z]+) \[(?P<times>[\d:]+)(?P<rest>, .*)\]$"
)


def merge_bars(rows: Iterable[Row]) -> list[Row]:
    """Merge bars of several ranks in neighbouring rows into one each.

    >>> slow = Row((0,), "stdout", "epoch:  20%|██        | 2/10 [00:02<00:08, 1.0it/s]")
    >>> fast = Row((1,), "stdout", "epoch:  40%|████      | 4/10 [00:02<00:03, 2.0it/s]")
    >>> merge_bars([slow, fast])
    [Row(ranks=(0, 1), stream='stdout', text='epoch:  20%|██        | 2-4/10 [00:02<00:08, 1.0it/s]')]
    """
    found: list[Row] = []
    group: list[tuple[Row, re.Match[str]]] = []
    for row in rows:
        bar = _bar_of(row.text)
        if bar is None or (group and not _goes_with(row, bar, group)):
            found += _merged(group)
            group = []
        if bar is None:
            found.append(row)
        else:
            group.append((row, bar))
    return found + _merged(group)


def _bar_of(text: str) -> re.Match[str] | None:
    if not text.endswith("]"):
        return None
    return _WITH_TOTAL.match(text) or _WITHOUT_TOTAL.match(text)


def _goes_with(row: Row, bar: re.Match[str], group: list[tuple[Row, re.Match[str]]]) -> bool:
    first, other = group[0]
    same = (row.stream, bar["what"], bar["total"]) == (first.stream, other["what"], other["total"])
    return same and not any(set(row.ranks) & set(each.ranks) for each, _ in group)


def _merged(group: list[tuple[Row, re.Match[str]]]) -> list[Row]:
    if len(group) < 2:
        return [row for row, _ in group]
    in_order = sorted((bar for _, bar in group), key=_amount)
    slowest, fastest = in_order[0], in_order[-1]
    text = slowest.string
    if slowest["n"] + slowest["unit"] != fastest["n"] + fastest["unit"]:
        text = f"{text[: slowest.end('unit')]}-{fastest['n']}{fastest['unit']}{text[slowest.end('unit') :]}"
    ranks = tuple(sorted(rank for row, _ in group for rank in row.ranks))
    return [Row(ranks, group[0][0].stream, text)]


def _amount(bar: re.Match[str]) -> tuple[float, float]:
    """Return a bar's progress as a sort key; of two with equal progress, the slower one is behind."""
    try:
        number = float(bar["n"])
    except ValueError:
        number = 0.0
    elapsed = 0.0
    for part in bar["times"].partition("<")[0].split(":"):
        elapsed = 60 * elapsed + (float(part) if part.isdigit() else 0.0)
    return number * 1000.0 ** " kMGTP".index(bar["unit"] or " "), -elapsed
