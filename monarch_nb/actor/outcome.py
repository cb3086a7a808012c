"""From arrived answers to values or folded errors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_nb._post.failure import revive
from monarch_nb._post.pending import Body, Gather, OneReply
from monarch_nb._shape import Shape
from monarch_nb._wire.message import ERROR
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import ActorError, RankFailure, SupervisionError, describe_end


def one_value(reply: OneReply, what: str) -> Any:
    """Return the value of a single answer, or raise its failure."""
    __tracebackhide__ = True  # IPython and pytest then show the user's line, not ours
    body = reply.body
    if body is not None and not body.flags & ERROR:
        return body.value()
    failure = _of_end(reply.end) if body is None else _of_body(body)
    rank = (failure.get("end") or failure).get("rank", reply.slot)
    raise _error([((rank if isinstance(rank, int) else 0,), failure)], {}, 1, 0, what)


def value_mesh(gather: Gather, shape: Shape, what: str) -> ValueMesh[Any]:
    """Return all values at their points, or raise the failures with the good results on them."""
    __tracebackhide__ = True
    if not gather.failed:
        return ValueMesh(shape, [body.value() for body in gather.bodies if body is not None])
    results = {
        i: body.value() for i, body in enumerate(gather.bodies) if body is not None and not body.flags & ERROR
    }
    found: dict[Any, tuple[list[int], dict[str, Any]]] = {}
    for slot in gather.failed:
        body = gather.bodies[slot]
        failure = _of_end(gather.ends[slot]) if body is None else _of_body(body)
        key = (failure["type"], failure["message"], failure["traceback"])
        found.setdefault(key, ([], failure))[0].append(slot)
    groups = [(tuple(sorted(slots)), failure) for slots, failure in found.values()]
    num_unfinished = len(gather.bodies) - len(results) - len(gather.failed)
    raise _error(groups, results, len(gather.bodies), num_unfinished, what)


def _of_body(body: Body) -> dict[str, Any]:
    failure: dict[str, Any] = pickle.loads(body.payload)
    return failure


def _of_end(end: Mapping[str, Any] | None) -> dict[str, Any]:
    if end is None:
        return {"type": "MeshError", "message": "the connection was closed", "traceback": "", "dead": True}
    return {"type": "lost", "message": describe_end(end), "traceback": "", "dead": True, "end": end}


def _error(
    groups: Sequence[tuple[tuple[int, ...], dict[str, Any]]],
    results: Mapping[int, Any],
    num_ranks: int,
    num_unfinished: int,
    what: str,
) -> ActorError | SupervisionError:
    """Return the error for failures that are folded and in order of time."""
    failures = [_rank_failure(ranks, failure, first=i == 0 and len(groups) > 1) for i, (ranks, failure) in enumerate(groups)]
    num_failed = sum(len(f.ranks) for f in failures)
    all_dead = all(failure.get("dead") for _, failure in groups)
    of = f"{num_failed} of {num_ranks} ranks" if num_ranks > 1 else f"rank {failures[0].ranks[0]}"
    verb = ("are dead" if num_failed > 1 else "is dead") if all_dead else "failed"
    text = f"{what}: {of} {verb}"
    if num_unfinished:
        text += f"; {num_unfinished} had not finished"
    return (SupervisionError if all_dead else ActorError)(text, failures, results, num_unfinished)


def _rank_failure(ranks: tuple[int, ...], failure: Mapping[str, Any], *, first: bool) -> RankFailure:
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
