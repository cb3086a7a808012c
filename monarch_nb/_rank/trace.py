"""Prepares a rank's trace to be merged with those of other ranks: unique process ids and flow ids, and a
common clock.

torch writes times in microseconds since a moment of its own (`baseTimeNanoseconds`, Unix time). All ranks are
told one moment, that at which the cell was sent, and count from there: the clocks agree as well as the
machines' clocks do.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

ChromeTrace = dict[str, Any]
"""The JSON object of torch's traces: the format of Chrome's tracing."""
ChromeEvent = dict[str, Any]
"""One of its `traceEvents`."""
_PIDS_PER_RANK = 1000
"""Maximum number of process ids in one rank's trace: the process, and each of its GPUs."""

_FLOW_BITS = 32
_FLOWS = frozenset("stfbne")
_NAMES = frozenset({"process_name", "process_labels", "process_sort_index"})


def packed(trace: ChromeTrace, *, rank: int, host: str, pid: int, base_ns: int) -> bytes:
    """Return the events of a trace as JSON, one behind the other with commas between, and compressed."""
    text = ",\n".join(
        json.dumps(event, separators=(",", ":")) for event in rewritten(trace, rank, host, pid, base_ns)
    )
    return zlib.compress(text.encode(), 1)


def rewritten(trace: ChromeTrace, rank: int, host: str, pid: int, base_ns: int) -> Iterator[ChromeEvent]:
    """Yield the events of a trace with times since `base_ns`, process ids of this rank's own, and names that
    say the rank.

    >>> matmul = {"ph": "X", "name": "aten::mm", "pid": 77, "tid": 78, "ts": 1.0, "dur": 2.0}
    >>> trace = {"baseTimeNanoseconds": 5_000, "traceEvents": [matmul]}
    >>> for event in rewritten(trace, 3, "host", 77, base_ns=4_000):
    ...     what = event["args"] if event["ph"] == "M" else event["name"]
    ...     print(event["ph"], event["pid"], event.get("ts"), what)
    X 3000 2.0 aten::mm
    M 3000 None {'name': 'rank 3 (host)'}
    M 3000 None {'sort_index': 3000}
    """
    shift_us = (int(trace.get("baseTimeNanoseconds", 0)) - base_ns) / 1000
    pids = {pid: rank * _PIDS_PER_RANK}
    labels: dict[int, str] = {}
    for event in trace.get("traceEvents", ()):
        old = event.get("pid")
        if not isinstance(old, int):
            continue  # the profiler's own events
        new = pids.setdefault(old, rank * _PIDS_PER_RANK + len(pids))
        if event.get("name") in _NAMES and event.get("ph") == "M":
            labels[new] = event.get("args", {}).get("labels") or labels.get(new, "")
            continue
        yield _moved(event, new, rank, shift_us)
    for old, new in pids.items():
        place = f"rank {rank} ({host})" + ("" if old == pid else f" {labels.get(new) or f'GPU {old}'}")
        yield {"ph": "M", "name": "process_name", "pid": new, "tid": 0, "args": {"name": place}}
        yield {"ph": "M", "name": "process_sort_index", "pid": new, "tid": 0, "args": {"sort_index": new}}


def _moved(event: ChromeEvent, pid: int, rank: int, shift_us: float) -> ChromeEvent:
    moved = {**event, "pid": pid}
    if "ts" in event:
        moved["ts"] = round(event["ts"] + shift_us, 3)
    if event.get("ph") in _FLOWS and isinstance(event.get("id"), int):
        moved["id"] = event["id"] + (rank << _FLOW_BITS)
    return moved
