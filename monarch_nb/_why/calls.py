"""Finds out who waits for whose answer, among actors and the cells that call them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monarch_nb._why.facts import Activity, Call

Edge = tuple[Activity, Call, Activity]
"""The waiting activity, the call, and the activity that handles it, or will."""


def edges(activities: Sequence[Activity]) -> list[Edge]:
    """Return the waits whose other end is known: the call is being handled, or waits in the inbox of a busy
    thread.
    """
    found = []
    for waiter in activities:
        for call in waiter.calls:
            key = (waiter.rank, call.ref)
            found += [
                (waiter, call, a)
                for a in activities
                if a.rank in call.ranks and (key in a.serves or key in a.queued)
            ]
    return found


def cycle(found: Sequence[Edge]) -> list[Edge]:
    """Return a cycle of waits, the lowest rank first; empty if there's none."""
    for start in sorted({_name(e[0]) for e in found}):
        path = _path_back(start, found, start, [])
        if path:
            return path
    return []


def _path_back(
    start: tuple[int, int], found: Sequence[Edge], at: tuple[int, int], path: list[Edge]
) -> list[Edge]:
    for edge in found:
        if _name(edge[0]) != at or edge in path:
            continue
        to = _name(edge[2])
        if to == start:
            return [*path, edge]
        if all(_name(e[0]) != to for e in path):
            longer = _path_back(start, found, to, [*path, edge])
            if longer:
                return longer
    return []


def _name(activity: Activity) -> tuple[int, int]:
    return activity.rank, activity.actor


def name(activity: Activity) -> str:
    """Return the name of the call: "trainer.step on rank 0"."""
    return f"{activity.label} on rank {activity.rank}"


def ends(found: Sequence[Edge]) -> Iterable[Edge]:
    """Return the waits for threads that don't wait for an answer themselves."""
    waiting = {_name(e[0]) for e in found}
    return [e for e in found if _name(e[2]) not in waiting]
