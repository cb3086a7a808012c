"""Shows the effect of a cell on the memory of ranks: sizes by rank set, and lines of Python that hold what
was allocated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_nb._protocol.profiles import MemoryReport
from monarch_nb._shape import format_ranks
from monarch_nb._units import size_text
from monarch_nb.profile.operators import spread

SIZES = {
    "resident": "resident_bytes",
    "resident, peak": "peak_bytes",
    "proportional": "proportional_bytes",
    "Python": "python_bytes",
    "Python, peak": "python_peak_bytes",
    "CUDA": "cuda_bytes",
    "CUDA, peak": "cuda_peak_bytes",
}
SIZE_COLUMNS = ("memory", "mean", "min", "max", "rank of max")
LINE_COLUMNS = ("held by", "ranks", "size", "objects")


def size_rows(reports: Mapping[int, MemoryReport]) -> list[tuple[str, ...]]:
    """Return the rows of the table of memory: the change of each kind of memory over the cell, and its peak
    above the level before.
    """
    rows = []
    for name, key in SIZES.items():
        found = {rank: getattr(report, key) for rank, report in reports.items()}
        figures = {rank: float(size) for rank, size in found.items() if size is not None}
        if figures:
            all_ = spread(figures)
            rows.append((name, *map(change_text, (all_.mean, all_.least, all_.most)), str(all_.rank)))
    return rows


def line_rows(reports: Mapping[int, MemoryReport], num_top: int) -> list[tuple[str, ...]]:
    """Return the rows of the table of lines: the lines that hold the most memory allocated in Python by the
    cell, each with the mean over its ranks.

    >>> report = MemoryReport(0, 0, None, 0, 0, lines=(("In [3] line 1", 2_000_000, 5),))
    >>> line_rows({0: report, 1: report}, 10)
    [('In [3] line 1', '[0-1]', '1.907 MiB', '5')]
    """
    found: dict[str, list[tuple[int, int, int]]] = {}
    for rank, report in sorted(reports.items()):
        for place, size, num in report.lines:
            found.setdefault(place, []).append((rank, size, num))
    means = {place: _mean([size for _, size, _ in each]) for place, each in found.items()}
    top = sorted(found, key=lambda place: (-means[place], place))[:num_top]
    return [
        (
            place,
            f"[{format_ranks(r for r, _, _ in found[place])}]",
            size_text(round(means[place])),
            f"{_mean([n for _, _, n in found[place]]):,.0f}",
        )
        for place in top
    ]


def _mean(figures: Sequence[int]) -> float:
    return sum(figures) / len(figures)


def change_text(num_bytes: float) -> str:
    """Return a change of size, in bytes, as text with a sign.

    >>> change_text(-2 << 20), change_text(0), change_text(1024)
    ('-2 MiB', '0 bytes', '+1 KiB')
    """
    sign = "-" if num_bytes < 0 else "+" if num_bytes > 0 else ""
    return f"{sign}{size_text(abs(round(num_bytes)))}"
