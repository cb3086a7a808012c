"""Brings an engine back after ranks were lost and started anew: values of which each part is on another rank,
too, live on; the others are lost.

A value is good if all its parts are there, and no command was under way that would have changed it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from monarch_nb._rank.tensor.protocol import Gift, GridDefinition, Recovery, Stopped
from monarch_nb._shape.rank_set import format_ranks, name_ranks
from monarch_nb._tensor.metadata import Grid, Meta, Placements
from monarch_nb._tensor.slots import Handle, live_handles
from monarch_nb._tensor.stream import Stream
from monarch_nb.actor.handle import placement_of
from monarch_nb.exceptions import RankTimeout, SupervisionError

if TYPE_CHECKING:
    from monarch_nb._tensor.controller import Engine

STOP_S = 60.0
AGAIN_S = 0.5
START_S = 120.0


Donors = dict[int, frozenset[int]]
"""For each lost rank those that have the same part of a value."""


def parts(grid: Grid, placements: Placements) -> dict[int, tuple[int, ...]]:
    """Return which part of a value each rank of a grid has; replicas have the same."""
    split = [n for n, each in enumerate(placements) if not each.is_replicate()]
    points = itertools.product(*map(range, grid.shape))
    return {rank: tuple(at[n] for n in split) for rank, at in zip(grid.ranks, points, strict=True)}


def donors(grid: Grid, placements: Placements | None, lost: Iterable[int]) -> Donors | None:
    """Return for each lost rank of a grid which others have the same part of a value; None if there is one
    whose part nobody has.
    """
    gone = set(lost) & set(grid.ranks)
    if not gone:
        return {}
    if placements is None or any(each.is_partial() for each in placements):
        return None
    part = parts(grid, placements)
    found = {r: frozenset(o for o in part if o not in gone and part[o] == part[r]) for r in sorted(gone)}
    return found if all(found.values()) else None


class Survivors:
    """The values of one engine that are good after a loss.

    Args:
        engine: the engine; all its ranks exist again.
        stopped: what each rank knows of its values; None for those that were started anew.
    """

    def __init__(self, engine: Engine, stopped: Sequence[Stopped | None]) -> None:
        self._engine = engine
        self._stopped = {rank: each for rank, each in enumerate(stopped) if each is not None}
        self.lost = tuple(rank for rank, each in enumerate(stopped) if each is None)
        self._first = min((each.seq for each in self._stopped.values()), default=0)
        self._stale = frozenset().union(*(each.stale for each in self._stopped.values()))
        self.handles = {h.slot: h for h in live_handles() if h.slots is engine.slots}
        self.poisons = self._poisons()

    def _poisons(self) -> dict[int, int]:
        found = {slot: seq for each in self._stopped.values() for slot, seq in each.poisons.items()}
        return {slot: seq for slot, seq in found.items() if slot in self.handles and not self._is_late(slot)}

    def _is_late(self, slot: int) -> bool:
        return self.handles[slot].seq >= self._first

    def choose(self) -> tuple[dict[int, Handle], list[Gift]]:
        """Return the handles of values that are lost, and what is given to ranks that were started anew."""
        wanted: dict[int, Donors] = {}
        gone: dict[int, Handle] = {}
        for slot, handle in self.handles.items():
            found = self._donors(slot, handle)
            if found is None:
                gone[slot] = handle
            elif found and slot not in self.poisons:
                wanted[slot] = found
        gifts, missing = self._gifts(wanted)
        return gone | {slot: self.handles[slot] for slot in missing}, gifts

    def _donors(self, slot: int, handle: Handle) -> Donors | None:
        """Return who can give a value to lost ranks; None if it's lost."""
        meta = handle.meta
        if self._is_late(slot):
            return None
        if slot in self.poisons:
            return {}
        if meta is None or slot in self._stale:
            return None
        return donors(meta.grid, meta.placements, self.lost) if self._are_alike(slot, meta) else None

    def _are_alike(self, slot: int, meta: Meta) -> bool:
        """Return whether replicas of a value were changed equally often: a function may have been under
        way.
        """
        part = {} if meta.placements is None else parts(meta.grid, meta.placements)
        versions = {(part[r], s.versions.get(slot)) for r, s in self._stopped.items() if r in part}
        return len(versions) == len({each for each, _ in versions})

    def _gifts(self, wanted: Mapping[int, Donors]) -> tuple[list[Gift], set[int]]:
        """Return what each rank gives, and the slots that nobody can give."""
        gifts, missing = [], set()
        for target in self.lost:
            open_slots = {slot: found[target] for slot, found in wanted.items() if target in found}
            while open_slots:
                able = [rank for found in open_slots.values() for rank in found]
                donor = max(sorted(set(able)), key=able.count)
                slots = [slot for slot, found in open_slots.items() if donor in found]
                offer = self._engine.worker_of(donor).offer.call_one(slots).get(STOP_S)
                missing |= set(slots) - set(offer.values)
                gifts.append(Gift(donor, target, offer))
                open_slots = {slot: found for slot, found in open_slots.items() if slot not in slots}
        return gifts, missing

    def reason(self, handle: Handle, why: str) -> str:
        """Return the text of the error for a lost value."""
        engine = self._engine
        place = engine.places.of(handle.seq, engine.stream.count)
        made = f"  {place.op} in {place}\n" if place is not None and str(place) else ""
        who = name_ranks(self.lost) if self.lost else "what its ranks did"
        return (
            f"this tensor was lost with {who} of its mesh, which was healed since ({why})\n{made}"
            "  make it again, from a checkpoint or from the start; tensors of which other ranks have all "
            "parts live on"
        )


def recover(engine: Engine, why: str) -> None:
    """Bring back an engine whose ranks all exist again.

    Args:
        why: how the ranks were lost.

    Raises:
        SupervisionError: if a rank is lost meanwhile.
    """
    stream = engine.stream
    stopped = _stop(engine, stream)
    survivors = Survivors(engine, stopped)
    gone, gifts = survivors.choose()
    for handle in gone.values():
        handle.lose(survivors.reason(handle, why))
    kept = frozenset(survivors.handles) - frozenset(gone)
    recovery = Recovery(
        engine.epoch,
        engine.control_of(0).open_store.call_one().get(START_S),
        survivors.lost,
        stream.count,
        engine.slots.top,
        kept,
        {slot: seq for slot, seq in survivors.poisons.items() if slot in kept},
        tuple(GridDefinition(g.number, g.shape, g.names, g.ranks) for g in engine.grids),
        tuple(engine.definitions),
        tuple(gifts),
    )
    engine.worker.recover.call(recovery).get(START_S)
    engine.begin_stream(stream.count)


def _stop(engine: Engine, stream: Stream) -> Sequence[Stopped | None]:
    """Stop all ranks at the end of what was sent to them; return what they know."""
    answers = engine.worker.stand_still.call(stream.unsent())
    deadline = time.monotonic() + STOP_S
    while True:
        try:
            return list(answers.get(AGAIN_S).values())
        except RankTimeout:
            if time.monotonic() > deadline:
                late = placement_of(engine.procs).ranks_among(answers.at_work())
                raise SupervisionError(
                    f"what {name_ranks(late)} did when another one was lost can't be stopped: "
                    f"%mesh restart --ranks {format_ranks(late)} starts anew there"
                ) from None
            engine.control.halt.call().get(STOP_S)  # one may have entered another collective meanwhile
