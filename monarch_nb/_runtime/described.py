"""Failures as processes have described them, made into those that people see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch_nb._post.failure import revive
from monarch_nb._post.pending import Body, GatherReply, OneReply, Pending
from monarch_nb._protocol.exits import RankExit
from monarch_nb._wire.message import ERROR
from monarch_nb.exceptions import RankFailure, describe_end

Described = Mapping[str, Any]
"""A failure as the rank has described it (`_post.failure.describe`)."""


def failures_of(pending: Pending) -> list[tuple[int, Described]]:
    """Return the failures among the answers of a call, each with its position, first in time first."""
    if isinstance(pending, GatherReply):
        found = [(slot, pending.bodies[slot], pending.ends.get(slot)) for slot in pending.failed]
    elif isinstance(pending, OneReply) and (pending.body is None or pending.body.flags & ERROR):
        found = [(pending.slot, pending.body, pending.end)]
    else:
        found = []
    failures = [(slot, of_end(end) if body is None else _of_body(body)) for slot, body, end in found]
    return [(rank_of(slot, failure) if isinstance(pending, OneReply) else slot, failure) for slot, failure in failures]


def rank_of(slot: int, failure: Described) -> int:
    """Return the rank that a single answer came from: its position says nothing."""
    rank = (failure.get("end") or failure).get("rank", slot)
    return rank if isinstance(rank, int) else 0


def _of_body(body: Body) -> dict[str, Any]:
    found = body.value()
    return found if isinstance(found, dict) else {"type": "MeshError", "message": str(found), "traceback": ""}


def of_end(end: RankExit | None) -> dict[str, Any]:
    """Return the failure that the end of a process is; None: nothing is known of it."""
    if end is None:
        return {"type": "MeshError", "message": "the connection was closed", "traceback": "", "dead": True}
    return {"type": "lost", "message": describe_end(end), "traceback": "", "dead": True, "end": end.plain()}


def rank_failures(failures: Sequence[tuple[int, Described]]) -> list[RankFailure]:
    """Return equal failures once, with their ranks, the first in time first and marked."""
    found: dict[Any, tuple[list[int], Described]] = {}
    for rank, failure in failures:
        key = (failure["type"], failure["message"], failure["traceback"])
        found.setdefault(key, ([], failure))[0].append(rank)
    return [
        rank_failure(tuple(sorted(ranks)), failure, first=i == 0 and len(found) > 1)
        for i, (ranks, failure) in enumerate(found.values())
    ]


def rank_failure(ranks: tuple[int, ...], failure: Described, *, first: bool) -> RankFailure:
    """Return a failure that a rank has described."""
    return RankFailure(
        ranks=ranks,
        type=failure["type"],
        message=failure["message"],
        traceback=failure["traceback"],
        exception=revive(dict(failure)),
        when=failure.get("when", 0.0),
        first=first,
        end=failure.get("end"),
        details={k: failure[k] for k in ("host", "pid", "actor", "endpoint") if k in failure},
    )
