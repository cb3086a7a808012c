"""Computes the calls and times of each operator, from the events of a trace. torch's own `key_averages` gives
the same, but builds an object for each event: minutes for long cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from monarch_nb._rank.trace import ChromeEvent

_ON_CPU = frozenset({"cpu_op", "user_annotation"})
_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})

Row = tuple[str, int, float, float]
"""Name, calls, its own CPU time and its own time on the GPU in microseconds."""


def operators(events: Iterable[ChromeEvent]) -> list[Row]:
    """Return a row per operator; times exclude those of operators that it calls.

    >>> op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    >>> call = {"args": {"External id": 5}}
    >>> operators([
    ...     {**op, "name": "matmul", "ts": 0.0, "dur": 10.0},
    ...     {**op, "name": "mm", "ts": 1.0, "dur": 8.0, **call},
    ...     {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 20.0, "dur": 3.0, **call},
    ... ])
    [('matmul', 1, 2.0, 0.0), ('mm', 1, 8.0, 3.0)]
    """
    by_thread: dict[tuple[Any, Any], list[ChromeEvent]] = {}
    launched: dict[Any, float] = {}
    for event in events:
        kind = event.get("cat") if event.get("ph") == "X" else None
        if kind in _ON_CPU:
            by_thread.setdefault((event["pid"], event["tid"]), []).append(event)
        elif kind in _ON_GPU:
            number = event.get("args", {}).get("External id")
            launched[number] = launched.get(number, 0.0) + event["dur"]
    launched.pop(None, None)
    found: dict[str, list[float]] = {}
    for of_thread in by_thread.values():
        _add_times(of_thread, found)
        for event in of_thread:
            gpu_us = launched.pop(event.get("args", {}).get("External id"), None)
            if gpu_us is not None:
                found[event["name"]][2] += gpu_us
    return [(name, int(calls), cpu_us, gpu_us) for name, (calls, cpu_us, gpu_us) in found.items()]


class _Call(msgspec.Struct):
    """An event of a trace, with its caller and the number of its callees."""

    name: str
    end: float
    own_us: float
    caller: _Call | None
    num_called: int = 0


def _add_times(events: Sequence[ChromeEvent], found: dict[str, list[float]]) -> None:
    """Add calls and CPU times of a thread's events: an event that begins within another one is its callee."""
    calls: list[_Call] = []
    callers: list[_Call] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        start, took = event["ts"], event["dur"]
        while callers and callers[-1].end <= start:
            callers.pop()
        caller = callers[-1] if callers else None
        if caller is not None:
            caller.own_us -= took
            caller.num_called += 1
        call = _Call(event["name"], start + took, took, caller)
        calls.append(call)
        callers.append(call)
    for call in calls:
        totals = found.setdefault(call.name, [0, 0.0, 0.0])
        totals[0] += not _is_twin(call)
        totals[1] += call.own_us


def _is_twin(call: _Call) -> bool:
    """Say whether an event repeats its caller: some operators are recorded on two levels, and torch counts
    them once.
    """
    caller = call.caller
    return caller is not None and caller.name == call.name and caller.num_called == 1
