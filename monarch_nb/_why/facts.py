"""The facts found by inspecting ranks, as dataclasses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from monarch_nb._protocol import hang
from monarch_nb._protocol.hang import HangFacts, HangRow, ThreadFacts
from monarch_nb._protocol.states import RankState, StacksBy, WaitKind
from monarch_nb._shape import format_ranks
from monarch_nb._stacks import innermost
from monarch_nb.status import MeshStatus, RankStatus


@dataclass(frozen=True)
class Operation:
    """An operation of a process group that a rank is in.

    Attributes:
        ranks: members of the group, by their numbers in the mesh; empty if unknown.
        sequence: number among the group's operations; 0 if unknown.
        since: when it began, if known.
        peer: the other rank of a send or recv.
    """

    name: str
    group: str
    ranks: tuple[int, ...]
    sequence: int
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    since: float | None = None
    peer: int | None = None

    def text(self) -> str:
        """Return the operation in words: "all_reduce #41 of the default group"."""
        number = f" #{self.sequence}" if self.sequence else ""
        if self.peer is not None:
            return f"{self.name} {'from' if self.name == 'recv' else 'to'} rank {self.peer}"
        return f"{self.name}{number}" + (f" of {self.group_text()}" if self.group else "")

    def group_text(self) -> str:
        """Return the group in words."""
        return (
            "the default group"
            if self.group == "default"
            else f"the group of ranks {format_ranks(self.ranks)}"
        )

    def tensor_text(self) -> str:
        """Return the operation's tensor in words: "float32[2, 3]"."""
        return "" if self.shape is None else f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Call:
    """A call whose answers a thread waits for, with the ranks that haven't answered."""

    what: str
    ref: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Activity:
    """The activity of one thread of a rank: a cell, a function, a call of an actor.

    Attributes:
        actor: id of the actor; 0: the main thread.
        serves: the calls that it handles, as (rank of the sender or None, ref); `queued`: those that wait for
            it.
        place: "cell [17] line 4" or "train.py, line 3, in step".
        doing: the function that the line has called.
        kind: kind of what it is blocked on (see `_rank.blocking`), or "".
    """

    rank: int
    label: str
    actor: int = 0
    serves: tuple[tuple[int | None, int], ...] = ()
    queued: tuple[tuple[int | None, int], ...] = ()
    place: str = ""
    source: str = ""
    doing: str = ""
    operation: Operation | None = None
    kind: WaitKind = WaitKind.UNKNOWN
    calls: tuple[Call, ...] = ()
    moved: bool = False

    @property
    def where(self) -> str:
        """Where it stands, in words: "in cell [17] line 4, DataLoader.__next__"."""
        if not self.place:
            return f"in {self.label}" if self.label else "somewhere in code that isn't the user's"
        what = self.doing or self.source
        return f"in {self.place}" + (f", {what}" if what else "")


@dataclass(frozen=True)
class RankFacts:
    """The known facts about one rank.

    Attributes:
        silent: where the rank stands according to its host process, if it doesn't answer; otherwise "".
        sequences: number of operations that it has entered, by group.
    """

    rank: int
    state: RankState
    reason: str = ""
    cell: int | None = None
    activities: tuple[Activity, ...] = ()
    sequences: Mapping[str, int] = field(default_factory=dict)
    silent: str = ""
    how: str = StacksBy.ASKED

    @property
    def is_gone(self) -> bool:
        """Whether the rank has died, or was stopped."""
        return self.state in (RankState.LOST, RankState.STOPPED, RankState.STOPPING)

    @property
    def where(self) -> str:
        """What it does, in words that go on from "it is"."""
        if self.silent:
            return self.silent
        main = next((a for a in self.activities if not a.actor), None) or next(iter(self.activities), None)
        return main.where if main is not None else "idle"


Members = Mapping[int, int]
"""Ranks of the default process group to ranks of the mesh."""


def rank_facts(
    row: RankStatus, found: HangRow | None, members: Members, procs: Mapping[int, int]
) -> RankFacts:
    """Return the facts about a rank from its status and its answer.

    Args:
        found: None: it wasn't asked.
        procs: proc id to rank.
    """
    known = RankFacts(row.rank, row.state, row.reason, row.cell)
    if found is None:
        return replace(known, how="")
    facts = found.facts
    if facts is None:
        place = innermost(found.stacks).removeprefix("is ")
        return replace(known, silent=place, how=found.stacks.get("how") or found.stacks.get("missing", ""))
    activities = [_activity(row, thread, members, procs) for thread in facts.threads]
    activities += _on_device(row.rank, facts, members) if not any(a.operation for a in activities) else []
    sequences = {name: group.sequence for name, group in facts.groups.items()}
    return replace(known, activities=tuple(activities), sequences=sequences)


def _activity(row: RankStatus, thread: ThreadFacts, members: Members, procs: Mapping[int, int]) -> Activity:
    blocked = thread.blocked
    return Activity(
        rank=row.rank,
        label=f"cell #{thread.origin}" if thread.label == "cell" else thread.label,
        actor=thread.actor,
        serves=_keys(thread.serves, procs),
        queued=_keys(thread.queued, procs),
        place=_place(thread),
        source=thread.source,
        doing=thread.doing,
        operation=_operation(row, thread.operation, members),
        kind=WaitKind.UNKNOWN if blocked is None else blocked.kind,
        calls=tuple(
            Call(c.what, c.ref, tuple(procs[p] for p in c.procs if p in procs)) for c in thread.calls
        ),
    )


def _keys(pairs: Iterable[tuple[int, int]], procs: Mapping[int, int]) -> tuple[tuple[int | None, int], ...]:
    return tuple((procs.get(src), ref) for src, ref in pairs)


def _place(thread: ThreadFacts) -> str:
    if thread.cell is not None:
        inside = "" if thread.function == "<module>" else f" in {thread.function}"
        return f"cell [{thread.cell}] line {thread.line}{inside}"
    return f"{thread.file}, line {thread.line}, in {thread.function}" if thread.file else ""


def _operation(row: RankStatus, found: hang.Operation | None, members: Members) -> Operation | None:
    if found is None:
        return None
    since = found.since
    known = row.collective
    if since is None and known is not None and (known.name, known.sequence) == (found.name, found.sequence):
        since = known.since
    ranks = tuple(members.get(r, r) for r in found.ranks)
    if not ranks and found.num_ranks == len(members):
        ranks = tuple(sorted(members.values()))
    peer = None if found.peer is None else members.get(found.peer, found.peer)
    return Operation(found.name, found.group, ranks, found.sequence, found.shape, found.dtype, since, peer)


def _on_device(rank: int, facts: HangFacts, members: Members) -> list[Activity]:
    """Return the operations that nccl waits for on the device, whatever the threads do."""
    if not facts.on_device:
        return []
    oldest = facts.on_device[0]
    default = facts.groups.get("default")
    ranks = () if default is None else tuple(members.get(r, r) for r in default.ranks)
    operation = Operation(
        oldest.name, "default", ranks, oldest.sequence, oldest.shape, oldest.dtype, oldest.since
    )
    return [Activity(rank, "nccl", -1, operation=operation)]


def members_of(status: MeshStatus, found: Mapping[int, HangRow]) -> dict[int, int]:
    """Return which rank of the mesh each rank of the default process group is; those that don't say it
    count as the same.
    """
    members = {r.rank: r.rank for r in status.ranks}
    for rank, each in found.items():
        if each.facts is not None and each.facts.dist_rank is not None:
            members[each.facts.dist_rank] = rank
    return members
