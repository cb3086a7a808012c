"""Merges messages that differ only in numbers into one with the values listed: `rank {0-3} broken`, `port
{4001, 4002}`.

Ranks that fail alike rarely say so in the same words: their number is in the message, an address, a port, a
pid. Such messages are one here. The frames of tracebacks must be equal (a failure in another line is another
one); all other text may differ in its *values*: numbers, sizes, times, addresses, ids. Nothing is lost: each
value is listed, in the order of the ranks; where several ranks have the same one of a few values, with their
ranks (`{[0-3] 5; [4-7] 7}`).

This is for errors and warnings. Ordinary output of ranks stays as they print it: there, the numbers are what
people look for.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

import msgspec

from monarch_nb._shape.rank_set import format_ranks

MAX_TEXT = 200_000
"""Longer texts are merged only if they are equal."""
MAX_LISTED_CHARS = 72
MAX_VALUES_WITH_RANKS = 3
_MIN_RUN = 3

_MARK = "\0"
"""Placeholder in a pattern for a value."""

_NUMBER = r"""
    [0-9\x1b](?:
        (?<=\x1b)\[[0-9;]*m                                             # no value but a colour: must be equal
        | (?<=0)x[0-9a-fA-F]+
        | (?<![0-9][0-9])[0-9]?:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?         # a time of day
        | [0-9]*(?:\.[0-9]+)*(?:[eE][+-]?[0-9]+)?(?:\ ?[KMGTP]i?B\b)?
    )
"""
_VALUE = re.compile(_NUMBER, re.VERBOSE)
"""Begins with a set of characters, which makes it ten times as fast as an alternative would."""
_VALUE_OR_ID = re.compile(
    rf"\b[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}\b"
    rf"| \b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{{7,}}\b | {_NUMBER}",
    re.VERBOSE,
)
_ID = re.compile(r"[0-9][a-f][0-9a-f]|[0-9a-f][a-f][0-9]")
"""A text without any of these contains no id."""
_PLACE = re.compile(r"(?:\x1b\[[0-9;]*m|[\s|+-])*(?:File|Cell)\b")
"""Beginnings of lines that give the place of a frame: these lines must be equal."""

_TROUBLE = re.compile(
    r"(?:Error|Exception|Warning|Interrupt)(?::|$)"  # what Python prints of exceptions and warnings
    r"|\b(?:WARNING|WARN|ERROR|CRITICAL|FATAL)\b|\[(?:warning|error|critical)\b"  # logging and its relatives
    r"|^(?:\[rank\d+\]:)?\[?[WEF]\d{4} "  # glog's form, as torch logs
)

Values = tuple[str, ...]


def is_trouble(line: str) -> bool:
    """Say whether a line of stderr is a warning, or reports a failure.

    >>> is_trouble("train.py:3: UserWarning: slow"), is_trouble("error rate 0.5")
    (True, False)
    """
    return _TROUBLE.search(line) is not None


def split(text: str) -> tuple[str, Values]:
    """Return the pattern of a text, and its values.

    >>> split("rank 3 broken at 0x7f")
    ('rank \\x00 broken at \\x00', ('3', '0x7f'))
    """
    if len(text) > MAX_TEXT or _MARK in text:
        return text, ()
    values: list[str] = []

    def take(found: re.Match[str]) -> str:
        if found[0][0] == "\x1b":
            return found[0]
        values.append(found[0])
        return _MARK

    lines = text.split("\n")
    for i, line in enumerate(lines):
        if _VALUE.search(line) and not _PLACE.match(line):
            lines[i] = (_VALUE_OR_ID if _ID.search(line) else _VALUE).sub(take, line)
    return "\n".join(lines), tuple(values)


NAMED = "[actor=<"
"""Beginning of the prefix that actors log with (see `actor.ownership.full_name_of`)."""


def split_name(text: str) -> tuple[str, Values]:
    """Return the pattern of a line that an actor has logged, and the values in the actor's name: its place.
    The message itself must be equal.

    >>> split_name("[actor=<root>.<m.A a{'gpus': 3/8}>] epoch 5")
    ("[actor=<root>.<m.A a{'gpus': \\x00/\\x00}>] epoch 5", ('3', '8'))
    """
    start = text.find(NAMED)
    end = text.find(">] ", start)
    if start < 0 or end < 0 or _MARK in text:
        return text, ()
    name, values = split(text[start:end])
    return text[:start] + name + text[end:], values


def merge(pattern: str, values: Mapping[int, Values]) -> str:
    """Return the text of a pattern with the values of some ranks.

    >>> merge("rank \\0 of \\0", {0: ("0", "2"), 1: ("1", "2")})
    'rank {0-1} of 2'
    """
    return _merge(pattern, sorted(values.items()))


def _merge(pattern: str, by_rank: Sequence[tuple[int, Values]]) -> str:
    if not by_rank[0][1]:
        return pattern
    first, *rest = pattern.split(_MARK)
    ranks = [rank for rank, _ in by_rank]
    columns = zip(*(values for _, values in by_rank), strict=True)
    return first + "".join(
        _listed(ranks, column) + after for column, after in zip(columns, rest, strict=True)
    )


def _listed(ranks: Sequence[int], values: Values) -> str:
    distinct = dict.fromkeys(values)
    if len(distinct) == 1:
        return values[0]
    if all(value == str(rank) for rank, value in zip(ranks, values, strict=True)):
        return f"{{{format_ranks(ranks)}}}"
    if len(distinct) < len(values) and len(distinct) <= MAX_VALUES_WITH_RANKS:
        return f"{{{'; '.join(_with_ranks(value, ranks, values) for value in distinct)}}}"
    return f"{{{_capped(_runs(list(distinct)))}}}"


def _with_ranks(value: str, ranks: Sequence[int], values: Values) -> str:
    theirs = [rank for rank, each in zip(ranks, values, strict=True) if each == value]
    return f"[{format_ranks(theirs)}] {value}"


def _runs(values: list[str]) -> list[tuple[str, int]]:
    """Merge consecutive values into ranges; return entries with the number of values in each."""
    found: list[tuple[str, int]] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and _follows(values[end - 1], values[end]):
            continue
        run = values[start:end]
        found += (
            [(f"{run[0]}-{run[-1]}", len(run))] if len(run) >= _MIN_RUN else [(value, 1) for value in run]
        )
        start = end
    return found


def _follows(value: str, other: str) -> bool:
    return value.isdecimal() and len(value) < 19 and other == str(int(value) + 1)


def _capped(entries: list[tuple[str, int]]) -> str:
    """Return entries with commas, up to a readable number, and the number left out."""
    shown: list[str] = []
    for i, (text, _) in enumerate(entries):
        if len(shown) >= 2 and sum(map(len, shown)) + 2 * len(shown) + len(text) > MAX_LISTED_CHARS:
            return ", ".join([*shown, f"... {sum(num for _, num in entries[i:])} more"])
        shown.append(text)
    return ", ".join(shown)


class Alike(msgspec.Struct, frozen=True):
    """A group of items whose texts are equal except for values such as numbers.

    Attributes:
        members: positions of its items.
        ranks: ranks of all its items.
        texts: their texts, merged.
    """

    members: tuple[int, ...]
    ranks: tuple[int, ...]
    texts: tuple[str, ...]


def fold(items: Iterable[tuple[Hashable, Sequence[int], Sequence[str]]]) -> list[Alike]:
    """Merge similar items, in the order of the first of each group.

    Args:
        items: of each, what must be equal; its ranks; its texts, which may differ in values.

    >>> [alike] = fold([("E", [0], ["port 4001"]), ("E", [2], ["port 4002"])])
    >>> alike.ranks, alike.texts
    ((0, 2), ('port {4001, 4002}',))
    """
    known: dict[str, tuple[str, Values]] = {}
    groups: dict[Hashable, list[tuple[int, Sequence[int], list[tuple[str, Values]]]]] = {}
    for position, (kind, ranks, texts) in enumerate(items):
        found = [known.get(text) or known.setdefault(text, split(text)) for text in texts]
        groups.setdefault((kind, *(pattern for pattern, _ in found)), []).append((position, ranks, found))
    return [_alike(group) for group in groups.values()]


def _alike(group: list[tuple[int, Sequence[int], list[tuple[str, Values]]]]) -> Alike:
    each = sorted(((rank, found) for _, ranks, found in group for rank in ranks), key=lambda one: one[0])
    each = each or [(0, found) for _, _, found in group]
    patterns = [pattern for pattern, _ in group[0][2]]
    return Alike(
        members=tuple(position for position, _, _ in group),
        ranks=tuple(sorted({rank for _, ranks, _ in group for rank in ranks})),
        texts=tuple(_merge(p, [(rank, found[i][1]) for rank, found in each]) for i, p in enumerate(patterns)),
    )
