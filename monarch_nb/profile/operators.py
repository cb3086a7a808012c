"""Operators of a cell, folded over ranks: their total time, and the rank that spent most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch_nb._units import time_text

Row = tuple[str, int, float, float]
"""A row of one rank: name, calls, its own CPU time, its own GPU time in microseconds."""


@dataclass(frozen=True)
class Spread:
    """A figure of several ranks: the least, the mean, the most, and the rank that has it."""

    least: float
    mean: float
    most: float
    rank: int


@dataclass(frozen=True)
class Operator:
    """The cost of one operator over ranks. Times are in seconds, without what it calls.

    Attributes:
        calls, cpu_s, gpu_s: per rank; ranks that never called it count as 0.
    """

    name: str
    calls: Spread
    cpu_s: Spread
    gpu_s: Spread


def fold_operators(rows: Mapping[int, Sequence[Row]]) -> list[Operator]:
    """Return the operators of all ranks, sorted by time, the longest first.

    >>> mm, = fold_operators({0: [("aten::mm", 2, 10.0, 0.0)], 1: [("aten::mm", 4, 30.0, 0.0)]})
    >>> mm.name, mm.calls.mean, mm.cpu_s.rank
    ('aten::mm', 3.0, 1)
    """
    found: dict[str, dict[int, Row]] = {}
    for rank, of_rank in rows.items():
        for row in of_rank:
            found.setdefault(row[0], {})[rank] = row
    operators = [_operator(name, by_rank, list(rows)) for name, by_rank in found.items()]
    return sorted(operators, key=lambda o: (-o.gpu_s.mean, -o.cpu_s.mean, o.name))


def _operator(name: str, by_rank: Mapping[int, Row], ranks: Sequence[int]) -> Operator:
    rows = {rank: by_rank.get(rank, (name, 0, 0.0, 0.0)) for rank in ranks}
    calls = spread({r: float(row[1]) for r, row in rows.items()})
    return Operator(
        name,
        calls,
        spread({r: row[2] / 1e6 for r, row in rows.items()}),
        spread({r: row[3] / 1e6 for r, row in rows.items()}),
    )


def spread(figures: Mapping[int, float]) -> Spread:
    """Return the minimum, mean and maximum of a figure per rank."""
    rank = max(figures, key=lambda r: (figures[r], -r))
    return Spread(min(figures.values()), sum(figures.values()) / len(figures), figures[rank], rank)


def operator_cells(
    operators: Sequence[Operator], num_ranks: int
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of the table of operators; columns without information are left out."""
    has_gpu = any(o.gpu_s.most for o in operators)
    several = num_ranks > 1
    head = ("operator", "calls", *_columns("CPU", several), *(_columns("GPU", several) if has_gpu else ()))
    rows = [
        (o.name, _calls(o.calls), *_times(o.cpu_s, several), *(_times(o.gpu_s, several) if has_gpu else ()))
        for o in operators
    ]
    return head, rows


def _columns(device: str, several: bool) -> tuple[str, ...]:
    return (f"self {device} mean", "min", "max", "rank of max") if several else (f"self {device}",)


def _times(found: Spread, several: bool) -> tuple[str, ...]:
    mean = time_text(found.mean)
    return (mean, time_text(found.least), time_text(found.most), str(found.rank)) if several else (mean,)


def _calls(found: Spread) -> str:
    return f"{found.most:,.0f}" if found.least == found.most else f"{found.least:,.0f}-{found.most:,.0f}"
