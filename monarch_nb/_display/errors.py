"""Groups errors of many ranks, equal ones together.

When eight ranks run the same cell they mostly fail alike; what a reader wants is each distinct failure with
the ranks it hit, and which came first in time, because the others are often its consequence (a collective
that lost its peer).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from monarch_nb._display import ansi
from monarch_nb._folding import fold
from monarch_nb._shape.rank_set import name_ranks
from monarch_nb.exceptions import cause_time


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error that one rank raised. `traceback_text` may hold colours; `when` is seconds on one clock for
    all ranks.

    >>> ErrorInfo(3, "ValueError", "bad", "Traceback ...", first=True, when=12.5).rank
    3
    """

    rank: int
    ename: str
    evalue: str
    traceback_text: str
    first: bool = False
    when: float = 0.0


class ErrorGroup(msgspec.Struct, frozen=True):
    """One distinct failure and the ranks it hit; `first` marks the one that came first in time."""

    ranks: tuple[int, ...]
    ename: str
    evalue: str
    traceback: str
    first: bool

    def headline(self) -> str:
        """Return one line such as `ranks 0-2,5: ValueError: bad`."""
        message = ansi.strip(self.evalue).strip().partition("\n")[0]
        return f"{name_ranks(self.ranks)}: {self.ename}" + (f": {message}" if message else "")


def fold_errors(errors: Iterable[ErrorInfo]) -> list[ErrorGroup]:
    """Merge equal failures, the first in time at the top; failures that differ only in numbers count as equal
    (`_folding`).

    >>> group, = fold_errors([ErrorInfo(0, "E", "x", "tb"), ErrorInfo(1, "E", "x", "tb")])
    >>> group.ranks, group.first
    ((0, 1), True)
    """
    in_time = sorted(
        errors, key=lambda error: (not error.first, cause_time(error.ename, error.when), error.rank)
    )
    groups = fold((e.ename, (e.rank,), (e.evalue, e.traceback_text)) for e in in_time)
    return [
        ErrorGroup(
            group.ranks, in_time[group.members[0]].ename, group.texts[0], group.texts[1], first=position == 0
        )
        for position, group in enumerate(groups)
    ]


def errors_text(groups: list[ErrorGroup], *, colour: bool = False) -> str:
    """Return the failures as text; if there are several, the text says which was first."""
    blocks = []
    for group in groups:
        mark = " (first)" if group.first and len(groups) > 1 else ""
        traceback = group.traceback if colour else ansi.strip(group.traceback)
        blocks.append(f"{group.headline()}{mark}\n{traceback.rstrip()}\n")
    return "\n".join(blocks)
