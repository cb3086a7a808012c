"""Lays recorded commands out as words: which slot each value gets.

What is made and used up within a recording has slots of the recording's own, which are used again as soon as
nobody needs their values. Parameters keep theirs. The slots of arguments, of gradients and of results come
with each replay.
"""

from __future__ import annotations

import array
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from monarch_nb._rank.tensor.protocol import DROP, RecordedPart
from monarch_nb._tensor.recorded import Captured, Made, Part, PlaceOf, Recorded, Value
from monarch_nb._tensor.slots import FULL, Slots

NOWHERE: PlaceOf = (None, 0, "", "")
WORDS = "I"


@dataclass(frozen=True, slots=True)
class Laid:
    """A part that ranks can replay.

    Attributes:
        part: what the ranks get.
        values: values whose slots come with a replay, in order.
        places: lines of its commands.
        positions: for each value that it makes and that comes with a replay: the number of the command.
    """

    part: RecordedPart
    values: tuple[Value, ...]
    places: tuple[PlaceOf, ...]
    positions: dict[Made, int]

    @property
    def is_empty(self) -> bool:
        """Whether it has no commands."""
        return not self.places

    @property
    def num_seeds(self) -> int:
        """How many seeds a replay brings."""
        return len(self.part.seeds)


class Layout:
    """The layout of a recording's parts.

    Args:
        slots: of the engine.
        kept: values that outlive a replay.

    Attributes:
        own: slots of the recording's own.
    """

    def __init__(self, slots: Slots, parts: Sequence[Part], kept: Collection[Value]) -> None:
        self._slots = slots
        self._parts = parts
        self._kept = set(kept)
        self._last_use = {
            value: command
            for part in parts
            for command in part.commands
            for value in (*command.inputs, *command.outputs)
        }
        self.own: list[int] = []
        self._slot_of: dict[Value, int] = {}
        self._dead: list[int] = []
        self._free: list[int] = []
        self._dead_weight = 0

    def laid(self, numbers: Sequence[int]) -> list[Laid]:
        """Return the parts laid out, by these numbers."""
        made = [_Words(self) for _ in self._parts]
        for words, part in zip(made, self._parts, strict=True):
            for command in part.commands:
                words.add(command)
        if self.own:
            made[max(n for n, part in enumerate(self._parts) if part.commands)].drop(sorted(self.own))
        return [words.finish(number) for words, number in zip(made, numbers, strict=True)]

    def slot(self, value: Value) -> int | None:
        """Return the slot of a value; None if it comes with a replay."""
        if isinstance(value, Captured):
            return value.slot()
        if not isinstance(value, Made) or value in self._kept:
            return None
        found = self._slot_of.get(value)
        if found is None:
            found = self._slot_of[value] = self._acquired()
        return found

    def _acquired(self) -> int:
        for known in (self._dead, self._free):
            if known:
                return known.pop()
        self.own.append(self._slots.acquire())
        return self.own[-1]

    def dead_after(self, command: Recorded) -> list[int]:
        """Note which values nobody needs after a command; return slots that are to be emptied now."""
        for value in dict.fromkeys((*command.inputs, *command.outputs)):
            if isinstance(value, Made) and value not in self._kept and self._last_use[value] is command:
                self._dead.append(self._slot_of[value])
                self._dead_weight += value.meta.weight
        if self._dead_weight < FULL:
            return []
        found, self._dead, self._dead_weight = self._dead, [], 0
        self._free += found
        return found


class _Words:
    """The words of a part under construction."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._words = array.array(WORDS)
        self._positions, self._which = array.array(WORDS), array.array(WORDS)
        self._values: dict[Value, int] = {}
        self._seeds: list[int] = []
        self._parcels: list[object] = []
        self._places: list[PlaceOf] = []
        self._made_at: dict[Made, int] = {}

    def add(self, command: Recorded) -> None:
        """Add a command."""
        self._words.append(command.plan.number)
        for value in command.inputs:
            self._slot(value)
        self._words.frombytes(struct.pack(f"<{len(command.scalars)}d", *command.scalars))
        if command.num_seeds:
            self._seeds.append(len(self._words))
            self._words.extend((0, 0))
        for made in command.outputs:
            self._made_at[made] = len(self._places)
            self._slot(made)
        self._places.append(command.place)
        self._parcels += command.parcels
        dead = self._layout.dead_after(command)
        if dead:
            self.drop(dead)

    def _slot(self, value: Value) -> None:
        slot = self._layout.slot(value)
        if slot is None:
            self._positions.append(len(self._words))
            self._which.append(self._values.setdefault(value, len(self._values)))
        self._words.append(slot or 0)

    def drop(self, slots: Sequence[int]) -> None:
        """Add a command that empties slots."""
        self._words.extend((DROP, len(slots), *slots))
        self._places.append(NOWHERE)

    def finish(self, number: int) -> Laid:
        """Return the part."""
        return Laid(
            RecordedPart(
                number, self._words.tobytes(), len(self._values), self._positions.tobytes(),
                self._which.tobytes(), tuple(self._seeds), tuple(self._parcels),
            ),
            tuple(self._values),
            tuple(self._places),
            {value: at for value, at in self._made_at.items() if value in self._values},
        )  # fmt: skip
