"""Inspects all ranks twice, a moment apart: a thread that differs between the two makes progress."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from monarch_nb._protocol.hang import Hang, HangRow, ThreadFacts
from monarch_nb._protocol.states import RankState
from monarch_nb._why.diagnoses import Situation, diagnose
from monarch_nb._why.facts import RankFacts, members_of, rank_facts
from monarch_nb._why.report import HangReport, make_report
from monarch_nb.actor.handle import placement_of, session_of

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

GAP_S = 0.5
"""Time between the two looks."""
BUSY_SHARE = 0.2
"""Share of that time on a processor above which a thread computes."""

Answers = Mapping[int, HangRow]


def explain(mesh: Mesh, ranks: Sequence[int] | None = None) -> HangReport:
    """Find out why a mesh makes no progress.

    Args:
        ranks: those that the table shows; all are looked at.
    """
    status = mesh.status()
    procs = {proc: rank for rank, proc in enumerate(placement_of(mesh).procs)}
    first = _ask(mesh, [r.rank for r in status.ranks if r.state not in (RankState.LOST, RankState.STOPPED)])
    began = time.monotonic()
    answered = [r for r, found in first.items() if found.facts is not None]
    if any(found.facts.threads for found in first.values() if found.facts is not None):
        time.sleep(GAP_S)
        second = {**first, **_ask(mesh, answered)}
    else:
        second = dict(first)
    gap_s = time.monotonic() - began
    members = members_of(status, second)
    facts = {
        row.rank: _with_moves(
            rank_facts(row, second.get(row.rank), members, procs),
            first.get(row.rank),
            second.get(row.rank),
            gap_s,
        )
        for row in status.ranks
    }
    situation = Situation(facts, time.time())
    shown = facts if ranks is None else {r: f for r, f in facts.items() if r in ranks}
    return make_report(Situation(shown, situation.now), diagnose(situation))


def _ask(mesh: Mesh, ranks: Sequence[int]) -> Answers:
    if not ranks:
        return {}
    found: Answers = session_of(mesh).request(Hang(placement_of(mesh).procs_at(ranks)))
    return found


def _with_moves(facts: RankFacts, first: HangRow | None, second: HangRow | None, gap_s: float) -> RankFacts:
    """Mark the activities that have made progress since the first look."""
    if first is None or second is None or first.facts is None or second.facts is None:
        return facts
    before = {_key(t): t for t in first.facts.threads}
    moved = [_has_moved(before.get(_key(t)), t, gap_s) for t in second.facts.threads]
    moved += [False] * (len(facts.activities) - len(moved))
    return replace(
        facts, activities=tuple(replace(a, moved=m) for a, m in zip(facts.activities, moved, strict=True))
    )


def _key(thread: ThreadFacts) -> tuple[object, ...]:
    return (thread.actor, thread.label, thread.origin, thread.serves)


def _has_moved(before: ThreadFacts | None, now: ThreadFacts, gap_s: float) -> bool:
    if before is None:
        return True  # the activity has begun since
    if before.at != now.at or now.cpu_s - before.cpu_s > BUSY_SHARE * gap_s:
        return True
    return _sequence(before) != _sequence(now)


def _sequence(thread: ThreadFacts) -> tuple[str, int] | None:
    operation = thread.operation
    return None if operation is None else (operation.name, operation.sequence)
