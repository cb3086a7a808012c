"""Turns the failures among a call's answers into one error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch_nb._client.actor_states import ActorState, states_in
from monarch_nb._protocol.failure import Failure
from monarch_nb._runtime.described import failures_of, of_end, rank_failures
from monarch_nb._transport.pending import GatherReply, Pending
from monarch_nb._transport.transport import Transport
from monarch_nb.exceptions import ActorError, SupervisionError


def refuse_dead(transport: Transport, procs: Sequence[int], what: str) -> None:
    """Raise for processes that are known to be dead.

    Raises:
        SupervisionError: if there are any.
    """
    dead = [(slot, of_end(transport.ends[proc])) for slot, proc in enumerate(procs) if proc in transport.ends]
    if dead:
        raise call_error(transport, dead, {}, len(procs), 0, what, "; nothing was called")


def call_error(
    transport: Transport,
    failures: Sequence[tuple[int, Failure]],
    results: Mapping[int, Any],
    num_ranks: int,
    num_unfinished: int,
    what: str,
    more: str = "",
) -> ActorError | SupervisionError:
    """Return the error for failures in order of time. Failures of an actor that were reported before are
    summarised in one line.
    """
    transport.reported_ends.update(failure.end.proc for _, failure in failures if failure.end is not None)
    found = rank_failures(failures)
    all_dead = all(failure.dead for _, failure in failures)
    kind = SupervisionError if all_dead else ActorError
    state = _state_of(transport, failures)
    if (
        state is not None
    ):  # the actor has failed for good, and answers every call with the same failure: show it in full once
        described = [failure for _, failure in failures]
        error = kind(state.text(what, described), found, results, num_unfinished)
        return error if state.take_unreported(described) else error.briefly()
    num_failed = len(failures)
    of = f"{num_failed} of {num_ranks} ranks" if num_ranks > 1 else f"rank {found[0].ranks[0]}"
    verb = ("are dead" if num_failed > 1 else "is dead") if all_dead else "failed"
    text = f"{what}: {of} {verb}{more}"
    if num_unfinished:
        text += f"; {num_unfinished} had not finished"
    return kind(text, found, results, num_unfinished)


def dropped_error(pending: Pending, what: str) -> ActorError | SupervisionError | None:
    """Return the error of a call whose answer nobody will read; None if the program was told of all its
    failures: of deaths, of actors that can't be constructed; or has interrupted the call itself.
    """
    transport = pending.transport
    found = [
        (slot, failure) for slot, failure in failures_of(pending)
        if (failure.end is None or failure.end.proc not in transport.reported_ends)
        and failure.type != "KeyboardInterrupt"
        and not (failure.actor_id and failure.endpoint == "__init__")
    ]  # fmt: skip
    if not found:
        return None
    where = found[0][1]
    what = what or ".".join(filter(None, (where.actor, where.endpoint))) or "a call"
    num = len(pending.bodies) if isinstance(pending, GatherReply) else 1
    error = call_error(transport, found, {}, num, 0, what)
    return None if error.is_brief else error


def _state_of(transport: Transport, failures: Sequence[tuple[int, Failure]]) -> ActorState | None:
    """Return the state of an actor mesh that has failed for good, if these failures are of one; else None."""
    ids = {failure.actor_id for _, failure in failures}
    return states_in(transport).get(ids.pop()) if len(ids) == 1 else None
