"""Displays of ranks, in their places between the lines that ranks print; equal ones once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import groupby
from typing import TypeVar

import msgspec

from monarch_nb._display.bundle import Bundle
from monarch_nb._display.fold import DISPLAY, Row, in_rank_order

_Value = TypeVar("_Value")
_DRAWN_ID = re.compile(r"[0-9a-f]{32}")
"""IPython draws such an id for a display that is given none: it's another one on each rank."""


class Made:
    """A display that a rank has made, and what it shows by now."""

    __slots__ = ("bundle", "display_id", "printed", "token")

    def __init__(self, display_id: str | None, bundle: Bundle) -> None:
        self.display_id = display_id
        self.bundle = bundle
        self.printed: Bundle | None = None
        """What a terminal was sent of it."""
        is_named = display_id is not None and not _DRAWN_ID.fullmatch(display_id)
        what = f"{display_id} {is_named}" if is_named else bundle.key
        self.token = blake2b(what.encode("utf-8", "replace"), digest_size=16).hexdigest()
        """Equal on ranks that show the same: an id that the user has given, or else the content."""


class Display(msgspec.Struct, frozen=True):
    """One display between lines, and the ranks that show it."""

    ranks: tuple[int, ...]
    bundle: Bundle


def placed(rows: Iterable[Row]) -> list[Row | Display]:
    """Return rows with what they display by now; of displays with no line in between, equal ones once."""
    found: list[Row | Display] = []
    displays: list[Row] = []
    for row in rows:
        if row.stream == DISPLAY:
            displays.append(row)
            continue
        if displays:
            found += folded(in_rank_order(displays))
            displays = []
        found.append(row)
    return found + folded(in_rank_order(displays))


def stretches(body: Iterable[Row | Display]) -> list[tuple[list[Row], list[Display]]]:
    """Return lines, and the displays that follow them, as often as they take turns; at least once."""
    found: list[tuple[list[Row], list[Display]]] = [([], [])]
    for item in body:
        lines, displays = found[-1]
        if isinstance(item, Display):
            displays.append(item)
        elif displays:
            found.append(([item], []))
        else:
            lines.append(item)
    return found


def folded(rows: Iterable[Row]) -> list[Display]:
    """Return what rows display, equal bundles of several ranks once; each rank's stay in their order."""
    found: list[tuple[list[int], Bundle]] = []
    last: dict[int, int] = {}
    places: dict[Bundle, int] = {}
    for row in rows:
        for ranks, bundle in by_value(
            {rank: made.bundle for rank, made in zip(row.ranks, row.shown, strict=True)}
        ):
            place = places.get(bundle, -1)
            if place <= max(last.get(rank, -1) for rank in ranks):
                place = places[bundle] = len(found)
                found.append(([], bundle))
            found[place][0].extend(ranks)
            last.update(dict.fromkeys(ranks, place))
    return [Display(tuple(sorted(ranks)), bundle) for ranks, bundle in found]


def by_value(values: Mapping[int, _Value]) -> list[tuple[tuple[int, ...], _Value]]:
    """Return equal values once with their ranks, by lowest rank."""
    groups: dict[_Value, list[int]] = {}
    for rank in sorted(values):
        groups.setdefault(values[rank], []).append(rank)
    return [(tuple(ranks), value) for value, ranks in groups.items()]


def panels_of(displays: Iterable[Display]) -> list[list[tuple[tuple[int, ...], tuple[Bundle, ...]]]]:
    """Return neighbouring displays as panels that stand below each other, each with what some ranks show:
    what all have shown alone, what differs beside each other.
    """
    shown = list(displays)
    everybody = {rank for display in shown for rank in display.ranks}
    return [
        by_value(_by_rank(group))
        for _, group in groupby(shown, key=lambda display: set(display.ranks) == everybody)
    ]


def _by_rank(displays: Iterable[Display]) -> dict[int, tuple[Bundle, ...]]:
    found: dict[int, tuple[Bundle, ...]] = {}
    for display in displays:
        for rank in display.ranks:
            found[rank] = (*found.get(rank, ()), display.bundle)
    return found
