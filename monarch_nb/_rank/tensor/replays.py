"""Recorded commands on a rank. A message that replays them is expanded: the interpreter, and what is done
after a failure, know ordinary commands only.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monarch_nb._rank.tensor.compiler import Command
from monarch_nb._rank.tensor.protocol import Batch, RecordedPart

WORDS = "I"


class Part:
    """A recorded part, ready to be copied.

    Attributes:
        words: its commands.
        given: words that are slots of a replay: which one, by position.
        num_replays: how often it was replayed here.
        graphs: functions that do several of its commands, by the position of the first one; None as long as
            they haven't been made.
    """

    def __init__(self, part: RecordedPart) -> None:
        self.words = array.array(WORDS, part.words)
        self.num_slots, self.parcels, self._seeds = part.num_slots, part.parcels, part.seeds
        self.given = dict(
            zip(array.array(WORDS, part.positions), array.array(WORDS, part.which), strict=True)
        )
        self.num_words = 1 + part.num_slots + 2 * len(part.seeds)
        self.num_replays = 0
        self.graphs: Mapping[int, Command] | None = None

    def replayed(self, words: Sequence[int], at: int) -> array.array[int]:
        """Return the commands with the slots and seeds of the replay at a position of a message."""
        made = self.words[:]
        slots = words[at + 1 : at + 1 + self.num_slots]
        for position, which in self.given.items():
            made[position] = slots[which]
        seed = at + 1 + self.num_slots
        for position in self._seeds:
            made[position], made[position + 1] = words[seed], words[seed + 1]
            seed += 2
        return made


class Message:
    """A message of the stream with the recorded parts that it replays: these may be forgotten before the
    message is.

    Attributes:
        first: sequence number of its first command.
        definitions, forgotten: plans that are new in it, and those that no later command uses.
    """

    __slots__ = ("_batch", "_replays", "definitions", "first", "forgotten")

    def __init__(self, batch: Batch, known: dict[int, Part]) -> None:
        self.first, self.definitions, self.forgotten = batch.first, batch.definitions, batch.forgotten
        self._batch = batch
        self._replays: list[tuple[int, int, Part]] = []
        if batch.replays:
            words = array.array(WORDS, batch.words)
            self._replays = [(at, parcel, known[words[at]]) for at, parcel in batch.replays]

    def words(self) -> array.array[int]:
        """Return all commands of the message."""
        words = array.array(WORDS, self._batch.words)
        if not self._replays:
            return words
        made, end = array.array(WORDS), 0
        for at, _, part in self._replays:
            made += words[end:at]
            made += part.replayed(words, at)
            end = at + part.num_words
        made += words[end:]
        return made

    def parts(self) -> Iterator[tuple[int, Part]]:
        """Return the recorded parts, each with the position of its first command in `words`."""
        grown = 0
        for at, _, part in self._replays:
            yield at + grown, part
            grown += len(part.words) - part.num_words

    def parcels(self) -> Iterator[Any]:
        """Return the plain values that its commands take, in order."""
        given, end, pieces = self._batch.parcels, 0, []
        for _, parcel, part in self._replays:
            pieces += [given[end:parcel], part.parcels]
            end = parcel
        return itertools.chain(*pieces, given[end:])

    def free_parcels(self) -> None:
        """Forget the plain values: the commands that take them are done."""
        if self._batch.parcels:
            self._batch = replace(self._batch, parcels=())


class Replays:
    """The recorded parts that a rank knows."""

    def __init__(self) -> None:
        self._known: dict[int, Part] = {}
        self.clear = self._known.clear

    def start_over(self) -> None:
        """Forget how often parts were replayed, and their functions."""
        for part in self._known.values():
            part.num_replays, part.graphs = 0, None

    def message(self, batch: Batch) -> Message:
        """Take what is new in a message; return it with the parts that it replays."""
        for each in batch.recorded:
            self._known[each.number] = Part(each)
        made = Message(batch, self._known)
        for number in batch.forgotten_parts:
            self._known.pop(number, None)
        return made
