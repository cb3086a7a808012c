"""Pieces of a recording. A piece ends where a value is read that may decide what comes next; recordings that
begin alike share their first pieces.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Sequence
from typing import Any

from monarch_nb._tensor.layout import Laid, Layout
from monarch_nb._tensor.recorded import Made, Part, Read

_numbers = itertools.count(1)


class Piece:
    """A piece of a recording.

    Args:
        engine: engine whose commands these are.
        parts: its parts; if the last one reads a value that decides, the piece ends in that.
        results: values that outlive the call.
        earlier: values of earlier pieces that may be used.
    """

    def __init__(
        self, engine: Any, parts: Sequence[Part], results: Collection[Made], earlier: Collection[Made]
    ) -> None:
        self._engine = engine
        self.parts = tuple(parts)
        read = parts[-1].read
        self.decides: Read | None = read if read is not None and read.decides else None
        used = {g.value for p in parts for g in p.gradients} | {p.read.value for p in parts if p.read}
        self._kept = {v for v in used if isinstance(v, Made)} | set(earlier)
        self._kept |= self.decides.alive if self.decides is not None else set(results)
        self.laid: list[Laid] = []

    @property
    def alive(self) -> frozenset[Made]:
        """Values that later pieces may use."""
        return frozenset() if self.decides is None else self.decides.alive

    def lay_out(self) -> None:
        """Tell the ranks of it, if they don't know it."""
        if self.laid:
            return
        slots, stream = self._engine.slots, self._engine.stream
        layout = Layout(slots, self.parts, self._kept)
        numbers = [next(_numbers) for _ in self.parts]
        self.laid = layout.laid(numbers)
        for each in (laid for laid in self.laid if not laid.is_empty):
            stream.define_recorded(each.part)
        weakref.finalize(self, _free, slots, layout.own, stream, numbers)


def pieces_of(engine: Any, parts: Sequence[Part], results: Collection[Made]) -> tuple[Piece, ...]:
    """Return the pieces of a recording.

    Args:
        results: values that outlive the call.
    """
    found: list[Piece] = []
    begin = 0
    earlier: frozenset[Made] = frozenset()
    for n, part in enumerate(parts):
        decides = part.read is not None and part.read.decides
        if decides or n + 1 == len(parts):
            found.append(Piece(engine, parts[begin : n + 1], results, earlier))
            earlier, begin = earlier | found[-1].alive, n + 1
    return tuple(found)


def _free(slots: Any, own: Sequence[int], stream: Any, numbers: Sequence[int]) -> None:
    """Give back what a piece has on the ranks."""
    for slot in own:
        slots.drop(slot)
    for number in numbers:
        stream.forget_recorded(number)
