"""The progress of a cell as a snapshot, and the lines made from it: progress while it runs, times when it is
over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from monarch_nb._shape.rank_set import format_ranks
from monarch_nb._units import elapsed_text

PROGRESS_AFTER_S = 2.0
MIN_STRIP_S = 0.5
MIN_STRIP_RATIO = 1.2
MAX_STRIP_GROUPS = 6


@dataclass(frozen=True, slots=True)
class CellState:
    """The state of a cell at one moment. `seconds`: run time of each rank that has ended; `closed`: nobody
    waits for the cell any more.

    >>> state = CellState((0, 1), (0,), (), seconds={0: 1.5}, elapsed_s=3.0, num_lines=2, closed=False)
    >>> state.running
    (1,)
    """

    ranks: tuple[int, ...]
    done: tuple[int, ...]
    failed: tuple[int, ...]
    seconds: Mapping[int, float] = field(hash=False)
    elapsed_s: float
    num_lines: int
    closed: bool

    @property
    def running(self) -> tuple[int, ...]:
        """The ranks that have neither ended nor failed."""
        over = {*self.done, *self.failed}
        return tuple(rank for rank in self.ranks if rank not in over)

    @property
    def num_over(self) -> int:
        """The number of ranks that have ended, well or not."""
        return len(self.ranks) - len(self.running)

    @property
    def shows_progress(self) -> bool:
        """Whether there is a progress line: a rank still runs, and the cell is older than
        `PROGRESS_AFTER_S`.
        """
        return bool(self.running) and self.elapsed_s >= PROGRESS_AFTER_S


def progress_text(state: CellState) -> str:
    """Return such as `5 of 8 ranks done, 12 s; waiting for 5-7`, or nothing."""
    if not state.shows_progress:
        return ""
    who = format_ranks(state.running)
    rest = f"not finished: {who}" if state.closed else f"waiting for {who}"
    return f"{state.num_over} of {len(state.ranks)} ranks done, {elapsed_text(state.elapsed_s)}; {rest}"


def strip_shown(state: CellState) -> bool:
    """Return whether the times of the ranks differ enough to be shown."""
    times = state.seconds.values()
    if state.running or len(times) < 2:
        return False
    return max(times) > MIN_STRIP_S and max(times) > MIN_STRIP_RATIO * min(times)


def strip_text(state: CellState) -> str:
    """Return such as `time: [0-6] 1.2 s, [7] 3.4 s` at the end of a cell, or nothing."""
    if not strip_shown(state):
        return ""
    groups: dict[str, list[int]] = {}
    for rank, seconds in sorted(state.seconds.items(), key=lambda item: (item[1], item[0])):
        groups.setdefault(elapsed_text(seconds), []).append(rank)
    if len(groups) > MAX_STRIP_GROUPS:
        middle = elapsed_text(median(state.seconds.values()))
        (fastest, first), *_, (slowest, last) = groups.items()
        ends = (f"fastest [{format_ranks(first)}] {fastest}", f"slowest [{format_ranks(last)}] {slowest}")
        return f"time: {ends[0]}, median {middle}, {ends[1]}"
    return "time: " + ", ".join(f"[{format_ranks(sorted(ranks))}] {text}" for text, ranks in groups.items())
