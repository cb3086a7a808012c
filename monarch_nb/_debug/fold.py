"""Merges equal places and equal answers of stops, and names their ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from monarch_nb._protocol.base import Record
from monarch_nb._protocol.states import StopState
from monarch_nb._shape import format_ranks, name_ranks

if TYPE_CHECKING:
    from monarch_nb._debug.client import Answers
    from monarch_nb._protocol.debugging import Stop


def places(stops: Iterable[Stop]) -> list[list[Stop]]:
    """Group stops by their places, in the order of their ranks."""
    found: dict[object, list[Stop]] = {}
    for stop in stops:
        key = (
            stop.state,
            stop.file,
            stop.line,
            stop.function,
            stop.reason,
            stop.error,
            stop.what,
            stop.thread,
        )
        found.setdefault(key, []).append(stop)
    return list(found.values())


def place_text(stops: list[Stop]) -> str:
    """Return the place of some stops, in a line.

    >>> from monarch_nb._debug import Stop
    >>> place_text([Stop(1, 0, "main", "cell #3", "In [3]", 4, "step", "loss.backward()")])
    'rank 0: In [3], line 4, in step: loss.backward()  (cell #3)'
    """
    first = stops[0]
    who = name_ranks(sorted({s.rank for s in stops}))
    if first.state == StopState.RUNNING:
        return f"{who}: runs on from {first.file}, line {first.line}"
    error = f"{first.error}  " if first.error else ""
    return (
        f"{who}: {error}{first.file}, line {first.line}, in {first.function}: {first.text}  "
        f"({first.what or first.thread})"
    )


def source_text(stop: Stop, lines: int = 2) -> str:
    """Return the source around a stop, its line marked."""
    shown = [(n, text) for n, text in stop.source if abs(n - stop.line) <= lines]
    return "\n".join(f"{'->' if n == stop.line else '  '} {n:>4}  {text}" for n, text in shown)


def stops_text(stops: list[Stop], lines: int = 2) -> str:
    """Return the stops as text, with source: ranks and their places."""
    parts = []
    for group in places(stops):
        parts.append(place_text(group))
        source = source_text(group[0], lines)
        if source and group[0].state == StopState.STOPPED:
            parts.append(source)
    return "\n".join(parts)


class FoldedAnswer(Record, frozen=True):
    """One distinct answer, with the stops that have given it."""

    ids: list[int]
    ranks: str
    """The ranks of these stops, as a rank set."""
    text: str


def fold_answers(answers: Answers) -> list[FoldedAnswer]:
    """Merge equal answers: ids, rank set, text; in the order of the ranks.

    >>> from monarch_nb._debug.client import Answers
    >>> answers = Answers({1: "5", 2: "5", 3: "7"}, (), {1: 0, 2: 1, 3: 2})
    >>> [(each.ranks, each.text) for each in fold_answers(answers)]
    [('0-1', '5'), ('2', '7')]
    """
    found: dict[str, list[int]] = {}
    for each in sorted(answers.texts, key=lambda i: answers.ranks.get(i, 0)):
        found.setdefault(answers.texts[each], []).append(each)
    return [
        FoldedAnswer(ids, format_ranks(sorted({answers.ranks[i] for i in ids})), text)
        for text, ids in found.items()
    ]


def answers_text(answers: Answers, num_ranks: int) -> str:
    """Return the answers as text: equal ones merged, with their ranks in front of the lines."""
    lines = []
    for each in fold_answers(answers):
        prefix = f"[{each.ranks}] " if num_ranks > 1 else ""
        lines += [prefix + line for line in each.text.split("\n")] if each.text else []
    return "\n".join(lines)
