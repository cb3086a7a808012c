"""Sets of ranks as people write them: `all`, `3`, `0-3,7`, `::2`, `hosts=0,gpus=2:8`, `ranks(1,4)`.

A hand-written parser: the text comes from cells and command lines and is never evaluated. The grammar:

    set      := "all" | "ranks(" set ")" | numbers | coords
    numbers  := item ("," item)*
    coords   := dim "=" picks ("," dim "=" picks)*
    picks    := item | "(" item ("," item)* ")"
    item     := int | int "-" int | [int] ":" [int] [":" int]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import index

from monarch_nb._shape.extent import Extent
from monarch_nb._shape.shape import Shape
from monarch_nb._tracebacks import ShowsItself


class RankSetError(ShowsItself, ValueError):
    """The error of a rank set that can't be parsed or doesn't fit the mesh."""


_SPACE = re.compile(r"\s*([-,:=()])\s*")  # a space between two numbers stays, and is an error
_RANGE = re.compile(r"(\d+)-(\d+)$")
_INT = re.compile(r"-?\d+$")
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+)?)?$")
_COORD = re.compile(r"([A-Za-z_]\w*)=(\([^()]*\)|[^,()=]*)(?:,|$)")


def parse_ranks(text: str, grid: Extent | Shape) -> tuple[int, ...]:
    """Return the ranks that `text` names, sorted, each once.

    Args:
        text: a set of ranks, such as `0-3,7` or `hosts=0,gpus=2:8`.
        grid: the mesh they are ranks of.

    Raises:
        RankSetError: says what was read, what is wrong and what would be right.

    Example:
        >>> parse_ranks("hosts=1,gpus=::2", Extent(["hosts", "gpus"], [2, 4]))
        (4, 6)
    """
    extent = grid.extent if isinstance(grid, Shape) else grid
    inner = _SPACE.sub(r"\1", text.strip())
    while inner.startswith("ranks(") and inner.endswith(")"):
        inner = inner[len("ranks(") : -1]
    try:
        return tuple(sorted(set(_parse(inner, extent))))
    except _Wrong as wrong:
        raise RankSetError(
            f"can't read ranks {text!r}: {wrong}. This mesh has ranks 0-{extent.nelements - 1} ({extent}). "
            "Examples: all; 0-3,7; ::2; " + _example(extent)
        ) from None


def pick_ranks(ranks: str | Iterable[int], grid: Extent | Shape) -> tuple[int, ...]:
    """Return the ranks that are named by a text, or listed.

    Raises:
        RankSetError: if a text can't be read, or a number is no rank of that mesh.

    >>> pick_ranks([1, -1], Extent(["gpus"], [4]))
    (1, 3)
    """
    if isinstance(ranks, str):
        return parse_ranks(ranks, grid)
    extent = grid.extent if isinstance(grid, Shape) else grid
    try:
        return tuple(_index(index(rank), extent.nelements, "rank") for rank in ranks)
    except TypeError:
        why = "it is neither text nor a list of numbers"
    except _Wrong as wrong:
        why = str(wrong)
    raise RankSetError(
        f"can't take ranks {ranks!r}: {why}. This mesh has ranks 0-{extent.nelements - 1} ({extent}). "
        f"Examples: 'all'; [0, 1]; '::2'; '{_example(extent)}'"
    )


class _Wrong(Exception):
    """The error of a part of a rank set; its text says what is wrong."""


def _example(extent: Extent) -> str:
    return ",".join(f"{n}=0" for n in extent.labels) or "0"


def _parse(text: str, extent: Extent) -> Iterable[int]:
    if not text:
        raise _Wrong("nothing is given")
    if text == "all":
        return range(extent.nelements)
    if "=" in text:
        return _coords(text, extent)
    return [rank for item in text.split(",") for rank in _item(item, extent.nelements, "rank")]


def _coords(text: str, extent: Extent) -> Iterable[int]:
    picks: dict[str, set[int]] = {}
    at = 0
    while at < len(text):
        match = _COORD.match(text, at)
        if match is None:
            raise _Wrong(f"expected DIM=PICKS at {text[at:]!r}")
        label, body = match.groups()
        if label not in extent.labels:
            raise _Wrong(f"there is no dimension {label!r}")
        if label in picks:
            raise _Wrong(f"dimension {label!r} is given twice")
        items = body.strip("()").split(",")
        picks[label] = {i for item in items for i in _item(item, extent[label], label)}
        at = match.end()
    return [p.rank for p in extent.points() if all(p[k] in chosen for k, chosen in picks.items())]


def _item(item: str, size: int, what: str) -> Iterable[int]:
    if match := _RANGE.match(item):
        low, high = map(int, match.groups())
        if low > high:
            raise _Wrong(f"{item!r} counts down; write {high}-{low}")
        return range(_index(low, size, what), _index(high, size, what) + 1)
    if _INT.match(item):
        return [_index(int(item), size, what)]
    if match := _SLICE.match(item):
        start, stop, step = (None if g is None else int(g) for g in match.groups())
        if step == 0:
            raise _Wrong(f"{item!r} has a step of 0")
        found = range(size)[start:stop:step]
        if not found:
            raise _Wrong(f"{item!r} picks nothing of {size}")
        return found
    raise _Wrong(f"{item!r} is neither a number, a range A-B nor a slice A:B")


def _index(value: int, size: int, what: str) -> int:
    if not -size <= value < size:
        raise _Wrong(f"{what} {value} is out of range, 0 to {size - 1} would do")
    return value % size


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in the shortest form that `parse_ranks` reads.

    >>> format_ranks([0, 1, 2, 3, 7])
    '0-3,7'
    """
    parts: list[str] = []
    run: list[int] = []
    for rank in [*sorted(set(ranks)), None]:
        if run and rank == run[-1] + 1:
            run.append(rank)
            continue
        if run:
            parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
        run = [] if rank is None else [rank]
    return ",".join(parts)


def read_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a text that `format_ranks` has made, whatever mesh they were ranks of.

    >>> read_ranks("0-3,7"), read_ranks("")
    ((0, 1, 2, 3, 7), ())
    """
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return parse_ranks(text, Extent(["ranks"], [max(numbers) + 1])) if numbers else ()


def name_ranks(ranks: Iterable[int]) -> str:
    """Return the words for ranks in a sentence.

    >>> name_ranks([3]), name_ranks([1, 2, 3])
    ('rank 3', 'ranks 1-3')
    """
    found = set(ranks)
    return f"{'rank' if len(found) == 1 else 'ranks'} {format_ranks(found)}"


def name_hosts(hosts: Iterable[int]) -> str:
    """Return the words for hosts in a sentence.

    >>> name_hosts([3]), name_hosts([1, 2])
    ('host 3', 'hosts 1-2')
    """
    found = set(hosts)
    return f"{'host' if len(found) == 1 else 'hosts'} {format_ranks(found)}"
