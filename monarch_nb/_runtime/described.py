"""Turns the failures that processes have described into the form that users see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.failure import Failure
from monarch_nb._transport.failure import revive
from monarch_nb._transport.pending import Body, GatherReply, OneReply, Pending
from monarch_nb._wire.message import ERROR
from monarch_nb.exceptions import RankFailure, describe_end


def failures_of(pending: Pending) -> list[tuple[int, Failure]]:
    """Return the failures among the answers of a call, each with its position, first in time first."""
    if isinstance(pending, GatherReply):
        found = [(slot, pending.bodies[slot], pending.ends.get(slot)) for slot in pending.failed]
    elif isinstance(pending, OneReply) and (pending.body is None or pending.body.flags & ERROR):
        found = [(pending.slot, pending.body, pending.end)]
    else:
        found = []
    failures = [(slot, of_end(end) if body is None else _of_body(body)) for slot, body, end in found]
    return [
        (rank_of(slot, failure) if isinstance(pending, OneReply) else slot, failure)
        for slot, failure in failures
    ]


def rank_of(slot: int, failure: Failure) -> int:
    """Return the rank that a single answer came from, which its position doesn't tell."""
    if failure.end is not None:
        return failure.end.rank
    return slot if failure.rank is None else failure.rank


def _of_body(body: Body) -> Failure:
    found: Failure | str = body.read(Failure | str)
    return found if isinstance(found, Failure) else Failure("MeshError", found)


def of_end(end: RankExit | None) -> Failure:
    """Return the failure for the end of a process; None: the end isn't known."""
    if end is None:
        return Failure("MeshError", "the connection was closed", dead=True)
    return Failure("lost", describe_end(end), dead=True, end=end)


def rank_failures(failures: Sequence[tuple[int, Failure]]) -> list[RankFailure]:
    """Merge equal failures, with their ranks, the first in time first and marked."""
    found: dict[Any, tuple[list[int], Failure]] = {}
    for rank, failure in failures:
        key = (failure.type, failure.message, failure.traceback)
        found.setdefault(key, ([], failure))[0].append(rank)
    return [
        rank_failure(tuple(sorted(ranks)), failure, first=i == 0 and len(found) > 1)
        for i, (ranks, failure) in enumerate(found.values())
    ]


def rank_failure(ranks: tuple[int, ...], failure: Failure, *, first: bool) -> RankFailure:
    """Convert a failure that a rank has described."""
    return RankFailure(
        ranks=ranks,
        type=failure.type,
        message=failure.message,
        traceback=failure.traceback,
        exception=revive(failure.exception),
        when=failure.when,
        first=first,
        end=None if failure.end is None else failure.end.plain(),
        details={k: v for k in ("host", "pid", "actor", "endpoint") if (v := getattr(failure, k))},
    )
