"""Sequences of numbers that mostly follow each other, such as the proc ids of a group, in few bytes.

The ranks of 128 hosts with 8 each are one entry: 8 consecutive numbers, 128 times, 2**32 apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from monarch_nb._protocol.base import Record


class Run(Record, frozen=True, array_like=True):
    """A regular stretch of a sequence: `count` consecutive numbers, `times` in all.

    Attributes:
        first: the first number.
        step: how much further each repetition begins than the one before.
    """

    first: int
    count: int = 1
    step: int = 0
    times: int = 1

    def __iter__(self) -> Iterator[int]:
        starts = (self.first + i * self.step for i in range(self.times))
        return chain.from_iterable(range(start, start + self.count) for start in starts)


Runs = tuple[Run, ...]


def runs_of(numbers: Iterable[int]) -> Runs:
    """Return a sequence of numbers as runs.

    >>> runs_of([17, 18, 33, 34, 49, 50, 7])
    (Run(first=17, count=2, step=16, times=3), Run(first=7, count=1, step=0, times=1))
    """
    return tuple(_repeated(_consecutive(numbers)))


def numbers_of(runs: Iterable[Run]) -> tuple[int, ...]:
    """Return the numbers of runs.

    >>> numbers_of([Run(17, 2, 16, 3), Run(7)])
    (17, 18, 33, 34, 49, 50, 7)
    """
    return tuple(chain.from_iterable(runs))


def _consecutive(numbers: Iterable[int]) -> Iterator[Run]:
    first, count = 0, 0
    for number in numbers:
        if count and number == first + count:
            count += 1
            continue
        if count:
            yield Run(first, count)
        first, count = number, 1
    if count:
        yield Run(first, count)


def _repeated(runs: Iterable[Run]) -> Iterator[Run]:
    """Join runs of equal length that are equally far apart."""
    held: Run | None = None
    for run in runs:
        longer = None if held is None else _joined(held, run)
        if held is not None and longer is None:
            yield held
        held = longer or run
    if held is not None:
        yield held


def _joined(held: Run, run: Run) -> Run | None:
    step = held.step if held.times > 1 else run.first - held.first
    if held.count != run.count or run.first != held.first + held.times * step:
        return None
    return Run(held.first, held.count, step, held.times + 1)
