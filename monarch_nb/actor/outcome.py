"""From arrived answers to values or folded errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._post.failure import revive
from monarch_nb._post.pending import Body, Gather, OneReply, Pending
from monarch_nb._protocol.exits import RankExit
from monarch_nb._shape import Shape
from monarch_nb._wire.message import ERROR
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import ActorError, RankFailure, SupervisionError, describe_end

if TYPE_CHECKING:
    from monarch_nb._post.office import Office
    from monarch_nb.actor.actor_mesh import MeshState

Described = Mapping[str, Any]
"""A failure as the rank has described it (`_post.failure.describe`)."""


def one_value(reply: OneReply, what: str) -> Any:
    """Return the value of a single answer, or raise its failure."""
    __tracebackhide__ = True  # IPython and pytest then show the user's line, not ours
    body = reply.body
    if body is not None and not body.flags & ERROR:
        return body.value()
    raise _error(reply.office, failures_of(reply), {}, 1, 0, what)


def value_mesh(gather: Gather, shape: Shape, what: str) -> ValueMesh[Any]:
    """Return all values at their points, or raise the failures with the good results on them."""
    __tracebackhide__ = True
    if not gather.failed:
        return ValueMesh(shape, [body.value() for body in gather.bodies if body is not None])
    results = {
        i: body.value() for i, body in enumerate(gather.bodies) if body is not None and not body.flags & ERROR
    }
    num_unfinished = len(gather.bodies) - len(results) - len(gather.failed)
    raise _error(gather.office, failures_of(gather), results, len(gather.bodies), num_unfinished, what)


def failures_of(pending: Pending) -> list[tuple[int, Described]]:
    """Return the failures among the answers of a call, each with its position, first in time first."""
    if isinstance(pending, Gather):
        found = [(slot, pending.bodies[slot], pending.ends.get(slot)) for slot in pending.failed]
    elif isinstance(pending, OneReply) and (pending.body is None or pending.body.flags & ERROR):
        found = [(pending.slot, pending.body, pending.end)]
    else:
        found = []
    failures = [(slot, _of_end(end) if body is None else _of_body(body)) for slot, body, end in found]
    return [(rank_of(slot, failure) if isinstance(pending, OneReply) else slot, failure) for slot, failure in failures]


def rank_of(slot: int, failure: Described) -> int:
    """Return the rank that a single answer came from: its position says nothing."""
    rank = (failure.get("end") or failure).get("rank", slot)
    return rank if isinstance(rank, int) else 0


def _of_body(body: Body) -> dict[str, Any]:
    found = body.value()
    return found if isinstance(found, dict) else {"type": "MeshError", "message": str(found), "traceback": ""}


def _of_end(end: RankExit | None) -> dict[str, Any]:
    if end is None:
        return {"type": "MeshError", "message": "the connection was closed", "traceback": "", "dead": True}
    return {"type": "lost", "message": describe_end(end), "traceback": "", "dead": True, "end": end.plain()}


def refuse_dead(office: Office, procs: Sequence[int], what: str) -> None:
    """Raise for processes that are known to be dead.

    Raises:
        SupervisionError: if there are any.
    """
    dead = [(slot, _of_end(office.ends[proc])) for slot, proc in enumerate(procs) if proc in office.ends]
    if dead:
        raise _error(office, dead, {}, len(procs), 0, what, "; nothing was called")


def _error(
    office: Office,
    failures: Sequence[tuple[int, Described]],
    results: Mapping[int, Any],
    num_ranks: int,
    num_unfinished: int,
    what: str,
    more: str = "",
) -> ActorError | SupervisionError:
    """Return the error for failures in order of time. What a failed actor has said before is said in one line."""
    office.told_ends.update(failure["end"]["proc"] for _, failure in failures if failure.get("end"))
    found = rank_failures(failures)
    all_dead = all(failure.get("dead") for _, failure in failures)
    kind = SupervisionError if all_dead else ActorError
    state = _state_of(office, failures)
    if state is not None:  # the actor has failed for good, and answers all calls with what it died of: told in full once
        described = [failure for _, failure in failures]
        error = kind(state.text(what, described), found, results, num_unfinished)
        return error if state.tell(described) else error.briefly()
    num_failed = len(failures)
    of = f"{num_failed} of {num_ranks} ranks" if num_ranks > 1 else f"rank {found[0].ranks[0]}"
    verb = ("are dead" if num_failed > 1 else "is dead") if all_dead else "failed"
    text = f"{what}: {of} {verb}{more}"
    if num_unfinished:
        text += f"; {num_unfinished} had not finished"
    return kind(text, found, results, num_unfinished)


def dropped_error(pending: Pending, what: str) -> ActorError | SupervisionError | None:
    """Return the error of a call whose answer nobody will read; None if the program was told of all that's in it: of deaths, of actors that
    can't be constructed; or has interrupted it itself.
    """
    office = pending.office
    found = [
        (slot, failure) for slot, failure in failures_of(pending)
        if (failure.get("end") or {}).get("proc") not in office.told_ends
        and failure["type"] != "KeyboardInterrupt"
        and not (failure.get("actor_id") and failure["endpoint"] == "__init__")
    ]  # fmt: skip
    if not found:
        return None
    where = found[0][1]
    what = what or ".".join(str(where[k]) for k in ("actor", "endpoint") if where.get(k)) or "a call"
    num = len(pending.bodies) if isinstance(pending, Gather) else 1
    error = _error(office, found, {}, num, 0, what)
    return None if error._is_brief else error


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


def _state_of(office: Office, failures: Sequence[tuple[int, Described]]) -> MeshState | None:
    """Return what is known here of the actors that have failed for good, if that's what these failures are."""
    from monarch_nb._client import session as sessions

    session = sessions.known(office)
    ids = {failure.get("actor_id", 0) for _, failure in failures}
    if session is None or len(ids) != 1:
        return None
    mesh = session.meshes.get(ids.pop())
    return None if mesh is None else mesh._state
