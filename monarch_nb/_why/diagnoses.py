"""Diagnoses hangs: one function for each way in which a program can hang. Pure.

Each takes the situation and returns what it has found, in sentences; `diagnose` asks them all, the surest
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from monarch_nb._protocol.states import RankState, StacksBy, WaitKind
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._units import duration
from monarch_nb._why import calls
from monarch_nb._why.facts import Activity, Operation, RankFacts

EQUAL_TENSORS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
)
"""Operations for which all ranks must pass tensors of the same shape and dtype."""
UNKNOWN = "an operation"
"""Name of an operation whose name isn't known: an async one that is waited for, without torch's flight
recorder.
"""


class Kind(StrEnum):
    """The kind of a diagnosis."""

    BREAKPOINT = "breakpoint"
    DEAD_PEER = "dead peer"
    ORDER_MISMATCH = "order mismatch"
    SHAPE_MISMATCH = "shape mismatch"
    DEADLOCK = "deadlock"
    MISSING_RANK = "missing rank"
    SLOW_RANK = "slow rank"
    SILENT = "silent"
    BLOCKED = "blocked"
    WAITING = "waiting"
    WORKING = "working"
    IDLE = "idle"


HARMLESS = (Kind.WORKING, Kind.IDLE)
_WORDS = {
    WaitKind.LOCK: "a lock",
    WaitKind.INPUT: "input, which nobody can type on a rank",
    WaitKind.QUESTION: "an answer, which is typed where its cell or call is waited for",
    WaitKind.QUEUE: "a queue",
    WaitKind.RECV: "data from a socket or a file",
    WaitKind.OPEN: "a file to be opened",
    WaitKind.THREAD: "another thread",
    WaitKind.PROCESS: "another process",
    WaitKind.CHANNEL: "a message of a channel",
}


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis, as `%mesh why` displays it.

    Attributes:
        ranks: the ranks that deviate from the others, and should be looked at.
        text: the diagnosis as a sentence.
        next: the command to type.
    """

    kind: Kind
    ranks: tuple[int, ...]
    text: str
    next: str = ""

    @property
    def is_harmless(self) -> bool:
        """Whether the diagnosis is of no problem."""
        return self.kind in HARMLESS


@dataclass(frozen=True)
class Situation:
    """The known facts: the ranks by number, and the time."""

    ranks: Mapping[int, RankFacts]
    now: float

    @property
    def activities(self) -> list[Activity]:
        """The activities of all ranks."""
        return [a for rank in self.ranks.values() for a in rank.activities]

    def waits(self) -> list[list[tuple[Activity, Operation]]]:
        """Return the activities that are in operations, by group; a send or recv is a matter of two."""
        found: dict[tuple[str, tuple[int, ...]], list[tuple[Activity, Operation]]] = {}
        for activity in self.activities:
            operation = activity.operation
            if operation is not None and operation.peer is None:
                found.setdefault((operation.group, operation.ranks), []).append((activity, operation))
        return list(found.values())

    def since(self, waiting: Iterable[tuple[Activity, Operation]]) -> str:
        """Return how long somebody has waited: " since 34 s", or nothing."""
        began = [o.since for _, o in waiting if o.since is not None]
        return f" since {duration(round(max(0.0, self.now - min(began)), 1))}" if began else ""


def diagnose(situation: Situation) -> tuple[Diagnosis, ...]:
    """Return the problems, the surest first; if there is none, the activities."""
    found = [diagnosis for function in _ALL for diagnosis in function(situation)]
    return tuple(found or [working(situation)])


# --- collectives


def missing_rank(situation: Situation) -> list[Diagnosis]:
    """Find the ranks of a group that haven't entered the operation in which the others wait."""
    found = []
    for front, others in _behind(situation):
        operation = front[0][1]
        for rank in [r for r in others if not (_is_slow(r) or r.is_gone or _has_stopped(r))]:
            found.append((operation, front, rank))
    return _folded(situation, found, Kind.MISSING_RANK, _never_entered) + _missing_peers(situation)


def slow_rank(situation: Situation) -> list[Diagnosis]:
    """Find ranks that others wait for, though they make progress: their line, their operation or their
    processor time changes between two looks.
    """
    found = []
    for front, others in _behind(situation):
        found += [(front[0][1], front, rank) for rank in others if _is_slow(rank)]
    return _folded(situation, found, Kind.SLOW_RANK, _comes_later)


def dead_peer(situation: Situation) -> list[Diagnosis]:
    """Find dead ranks in groups whose other ranks wait for them."""
    found = []
    for front, others in _behind(situation):
        found += [(front[0][1], front, rank) for rank in others if rank.is_gone]
    diagnoses = _folded(situation, found, Kind.DEAD_PEER, _never_comes)
    return [Diagnosis(v.kind, v.ranks, v.text, "%mesh interrupt, then %mesh heal") for v in diagnoses]


def order_mismatch(situation: Situation) -> list[Diagnosis]:
    """Diagnose ranks of a group that are in different operations at the same sequence number."""
    found = []
    for group in situation.waits():
        for same in _by(group, lambda o: (o.sequence,)):
            names = _by(same, lambda o: (o.name,))
            if len(names) > 1 and same[0][1].sequence and all(o.name != UNKNOWN for _, o in same):
                parts = [
                    f"{name_ranks(_ranks(each))} {_is(each)} in {each[0][1].name} #{each[0][1].sequence}"
                    for each in names
                ]
                places = [
                    f"{name_ranks(_ranks(each))}: {each[0][0].where.removeprefix('in ')}" for each in names
                ]
                text = (
                    f"{_and(parts)} of {same[0][1].group_text()}{situation.since(same)}: they do not "
                    f"match, so none ends ({'; '.join(places)})"
                )
                found.append(
                    Diagnosis(
                        Kind.ORDER_MISMATCH, _ranks(sorted(names, key=_size)[0]), text, "%mesh interrupt"
                    )
                )
    return found


def shape_mismatch(situation: Situation) -> list[Diagnosis]:
    """Diagnose ranks that are in the same operation with tensors of different shapes or dtypes."""
    found = []
    for group in situation.waits():
        for same in _by(group, lambda o: (o.sequence, o.name)):
            tensors = _by([w for w in same if w[1].shape is not None], lambda o: (o.tensor_text(),))
            if len(tensors) > 1 and same[0][1].name in EQUAL_TENSORS:
                parts = [
                    f"{name_ranks(_ranks(each))} {_has(each)} {each[0][1].tensor_text()}" for each in tensors
                ]
                odd = min(tensors, key=len)
                text = (
                    f"in {same[0][1].text()}{situation.since(same)}, {_and(parts)}: the tensors must be "
                    f"alike; {_it_is(odd)}"
                )
                found.append(Diagnosis(Kind.SHAPE_MISMATCH, _ranks(odd), text, "%mesh interrupt"))
    return found


def _behind(situation: Situation) -> list[tuple[list[tuple[Activity, Operation]], list[RankFacts]]]:
    """Return, for each group that somebody waits in, those in its newest operation, and the members that
    aren't.
    """
    found = []
    for group in situation.waits():
        newest = max(o.sequence for _, o in group)
        front = [w for w in group if w[1].sequence == newest]
        at_it = {a.rank for a, _ in front}
        others = [situation.ranks[r] for r in front[0][1].ranks if r not in at_it and r in situation.ranks]
        found.append((front, others))
    return found


_Odd = tuple[Operation, list[tuple[Activity, Operation]], RankFacts]


def _folded(
    situation: Situation, found: Sequence[_Odd], kind: Kind, say: Callable[[Operation, list[RankFacts]], str]
) -> list[Diagnosis]:
    """Return a diagnosis for each place at which odd ranks are."""
    groups: dict[tuple[int, str, str], list[_Odd]] = {}
    for odd in found:
        groups.setdefault((id(odd[1]), odd[2].where, odd[2].reason), []).append(odd)
    diagnoses = []
    for each in groups.values():
        operation, front, _ = each[0]
        odd_ranks = [rank for _, _, rank in each]
        waiting = (
            f"{name_ranks(_ranks(front))} {'waits' if len(front) == 1 else 'wait'} in "
            f"{operation.text()}{situation.since(front)}"
        )
        numbers = tuple(r.rank for r in odd_ranks)
        diagnoses.append(
            Diagnosis(
                kind,
                numbers,
                f"{waiting}; {say(operation, odd_ranks)}",
                f"%mesh stacks --ranks {format_ranks(numbers)}",
            )
        )
    return diagnoses


def _never_entered(operation: Operation, ranks: list[RankFacts]) -> str:
    first = ranks[0]
    who, one = name_ranks(r.rank for r in ranks), len(ranks) == 1
    if first.sequences.get(operation.group, 0) >= operation.sequence > 0 and not _in_operation(first):
        return (
            f"{who} has entered it and gone on: {_pronoun(one)} {first.where}"
            if one
            else f"{who} have entered it and gone on: they are {first.where}"
        )
    return f"{who} never entered it: {_pronoun(one)} {first.where}"


def _comes_later(operation: Operation, ranks: list[RankFacts]) -> str:
    who, one = name_ranks(r.rank for r in ranks), len(ranks) == 1
    return (
        f"{who} {'is' if one else 'are'} slow, but {'makes' if one else 'make'} progress: {_pronoun(one)} "
        f"{ranks[0].where}"
    )


def _never_comes(operation: Operation, ranks: list[RankFacts]) -> str:
    who, one = name_ranks(r.rank for r in ranks), len(ranks) == 1
    reason = f" ({ranks[0].reason})" if ranks[0].reason else ""
    return (
        f"{who} {'belongs' if one else 'belong'} to it and {'is' if one else 'are'} "
        f"{ranks[0].state}{reason}: {'it' if one else 'they'} will never come"
    )


def _missing_peers(situation: Situation) -> list[Diagnosis]:
    """Return sends and receives whose other end does something else."""
    found = []
    for activity in situation.activities:
        operation = activity.operation
        peer = (
            situation.ranks.get(operation.peer)
            if operation is not None and operation.peer is not None
            else None
        )
        if operation is None or peer is None:
            continue
        theirs = _in_operation(peer)
        if theirs is not None and theirs.peer == activity.rank and theirs.name != operation.name:
            continue
        what = f"{theirs.text()}, {peer.where}" if theirs is not None else peer.where
        kind = Kind.DEAD_PEER if peer.is_gone else Kind.SLOW_RANK if _is_slow(peer) else Kind.MISSING_RANK
        since = situation.since([(activity, operation)])
        text = (
            f"rank {activity.rank} waits in {operation.text()}{since}; rank {peer.rank} is "
            f"{what if not peer.is_gone else peer.state}"
        )
        found.append(Diagnosis(kind, (peer.rank,), text, f"%mesh stacks --ranks {peer.rank}"))
    return found


# --- actors


def deadlock(situation: Situation) -> list[Diagnosis]:
    """Diagnose actors, or cells that call them, that wait for each other's answers."""
    around = calls.cycle(calls.edges(situation.activities))
    if not around:
        return []
    parts = [
        f"{calls.name(waiter)} waits for {call.what} on rank {other.rank}" for waiter, call, other in around
    ]
    closing = (
        ", which is itself"
        if len(around) == 1
        else ": each waits for the other"
        if len(around) == 2
        else ": they wait in a circle"
    )
    ranks = tuple(sorted({waiter.rank for waiter, _, _ in around}))
    return [
        Diagnosis(
            Kind.DEADLOCK,
            ranks,
            ", and ".join(parts) + closing + f" ({around[0][0].where})",
            "%mesh interrupt",
        )
    ]


def waiting(situation: Situation) -> list[Diagnosis]:
    """Find cells and actors that wait for the answer of one that isn't waiting itself."""
    found = calls.edges(situation.activities)
    if calls.cycle(found):
        return []
    diagnoses = []
    for waiter, call, other in calls.ends(found):
        how = "which is slow, but makes progress: it is" if other.moved else "which is"
        kind = Kind.SLOW_RANK if other.moved else Kind.WAITING
        text = f"{calls.name(waiter)} waits for {call.what} on rank {other.rank}, {how} {other.where}"
        diagnoses.append(Diagnosis(kind, (other.rank,), text, f"%mesh stacks --ranks {other.rank}"))
    return diagnoses


# --- single ranks


def at_breakpoint(situation: Situation) -> list[Diagnosis]:
    """Diagnose ranks that have stopped at a breakpoint."""
    stopped = [r for r in situation.ranks.values() if _has_stopped(r)]
    if not stopped:
        return []
    others = [
        a
        for a in situation.activities
        if a.operation is not None and not _has_stopped(situation.ranks[a.rank])
    ]
    wait = (
        (
            f"; {name_ranks(a.rank for a in others)} {'waits' if len(others) == 1 else 'wait'} in "
            f"{others[0].operation.text()}"
        )
        if others and others[0].operation
        else ""
    )
    numbers = tuple(r.rank for r in stopped)
    verb = "has" if len(numbers) == 1 else "have"
    where = stopped[0].where.removesuffix(", breakpoint()")
    return [
        Diagnosis(
            Kind.BREAKPOINT,
            numbers,
            f"{name_ranks(numbers)} {verb} stopped at a breakpoint, {where}{wait}",
            "%mesh debug",
        )
    ]


def silent(situation: Situation) -> list[Diagnosis]:
    """Diagnose ranks that don't answer: something holds the interpreter's lock, or the process is stopped."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank in situation.ranks.values():
        if rank.silent:
            found.setdefault((rank.silent, rank.how), []).append(rank.rank)
    return [
        Diagnosis(
            Kind.SILENT,
            tuple(ranks),
            f"{name_ranks(ranks)} {'does' if len(ranks) == 1 else 'do'} not answer: something holds "
            f"the interpreter's lock, or the process is stopped; {_pronoun(len(ranks) == 1)} {where}"
            + (f" (found by {how})" if how in (StacksBy.FAULTHANDLER, StacksBy.PY_SPY) else ""),
            f"%mesh stacks --native --ranks {format_ranks(ranks)}",
        )
        for (where, how), ranks in found.items()
    ]


def blocked(situation: Situation) -> list[Diagnosis]:
    """Diagnose ranks with threads that wait for a lock, for input, or for data that doesn't come."""
    found: dict[tuple[WaitKind, str], list[int]] = {}
    for activity in situation.activities:
        if activity.kind in _WORDS and activity.operation is None and not activity.moved:
            found.setdefault((activity.kind, activity.where), []).append(activity.rank)
    return [
        Diagnosis(
            Kind.BLOCKED,
            tuple(ranks),
            f"{name_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for {_WORDS[kind]}, {where}",
            f"%mesh stacks --ranks {format_ranks(ranks)}",
        )
        for (kind, where), ranks in found.items()
    ]


def all_wait(situation: Situation) -> list[Diagnosis]:
    """Diagnose groups whose members are all in the same operation, which doesn't end: data is slow, or
    another thread holds it up.
    """
    found = []
    for front, others in _behind(situation):
        operation = front[0][1]
        is_mixed = len({o.name for _, o in front}) > 1 or bool(shape_mismatch(situation))
        if operation.ranks and not others and not is_mixed:
            text = (
                f"{name_ranks(_ranks(front))} {_is(front)} in {operation.text()}{situation.since(front)}, "
                "all that belong to it: it goes on, or the network is slow"
            )
            found.append(Diagnosis(Kind.WAITING, _ranks(front), text))
    return found


def working(situation: Situation) -> Diagnosis:
    """Describe what goes on where nothing is wrong."""
    busy = [(a.rank, a.where) for a in situation.activities]
    if not busy:
        gone = [r.rank for r in situation.ranks.values() if r.is_gone]
        also = f" ({name_ranks(gone)} {'is' if len(gone) == 1 else 'are'} lost: %mesh heal)" if gone else ""
        return Diagnosis(Kind.IDLE, tuple(gone), f"nothing runs{also}")
    places: dict[str, list[int]] = {}
    for rank, where in busy:
        places.setdefault(where, []).append(rank)
    parts = [
        f"{name_ranks(sorted(set(ranks)))} {'is' if len(set(ranks)) == 1 else 'are'} {where}"
        for where, ranks in places.items()
    ]
    return Diagnosis(
        Kind.WORKING,
        (),
        "no rank waits for another: " + "; ".join(parts[:4]) + ("; ..." if len(parts) > 4 else ""),
    )


_ALL: tuple[Callable[[Situation], list[Diagnosis]], ...] = (
    at_breakpoint,
    dead_peer,
    order_mismatch,
    shape_mismatch,
    deadlock,
    missing_rank,
    slow_rank,
    silent,
    blocked,
    waiting,
    all_wait,
)


# --- wording


def _by(
    waiting_ones: Iterable[tuple[Activity, Operation]], key: Callable[[Operation], tuple[object, ...]]
) -> list[list[tuple[Activity, Operation]]]:
    found: dict[tuple[object, ...], list[tuple[Activity, Operation]]] = {}
    for each in waiting_ones:
        found.setdefault(key(each[1]), []).append(each)
    return list(found.values())


def _size(waiting_ones: list[tuple[Activity, Operation]]) -> int:
    return len(waiting_ones)


def _ranks(waiting_ones: Iterable[tuple[Activity, Operation]]) -> tuple[int, ...]:
    return tuple(sorted({a.rank for a, _ in waiting_ones}))


def _is_slow(rank: RankFacts) -> bool:
    return any(a.moved for a in rank.activities) and not _has_stopped(rank)


def _has_stopped(rank: RankFacts) -> bool:
    return rank.state == RankState.DEBUGGING or any(a.kind == WaitKind.BREAKPOINT for a in rank.activities)


def _in_operation(rank: RankFacts) -> Operation | None:
    return next((a.operation for a in rank.activities if a.operation is not None), None)


def _pronoun(one: bool) -> str:
    return "it is" if one else "they are"


def _it_is(odd: Sequence[tuple[Activity, Operation]]) -> str:
    return f"{name_ranks(_ranks(odd))} {_is(odd)} {odd[0][0].where}"


def _is(ranks: Sequence[object]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _has(ranks: Sequence[object]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
