"""Notes of ranks: when each thing that they do begins, and what CPU time they have taken by then.

A note is a command in the stream as any other, so nothing waits for it, and what drives the ranks may be far
ahead of them.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import torch

import monarch_nb

Note = tuple[str, float, float]
"""What begins, the CPU seconds of this rank so far, and the time."""
_notes: list[Note] = []
Seconds = tuple[float, float]
"""Of a rank's CPU, and of the wall."""


def nothing(*_: Any) -> torch.Tensor:
    """Return what functions of ranks return that have no result."""
    return torch.zeros(())


@monarch_nb.remote(propagate=nothing)
def note(which: str) -> torch.Tensor:
    """Note the time at which something begins."""
    _notes.append((which, time.process_time(), time.perf_counter()))
    return nothing()


def read_notes() -> list[Note]:
    """Return a rank's notes, and forget them."""
    found = list(_notes)
    _notes.clear()
    return found


def between(of_ranks: list[list[Note]]) -> list[tuple[str, Seconds]]:
    """Return what was done between each two notes: CPU seconds of a rank, the mean of all, and the first
    rank's wall seconds.
    """
    at_once = zip(*of_ranks, strict=True)
    return [(began[0][0], _seconds(began, ended)) for began, ended in itertools.pairwise(at_once)]


def _seconds(began: Any, ended: Any) -> Seconds:
    cpu = statistics.mean(after[1] - before[1] for before, after in zip(began, ended, strict=True))
    return cpu, ended[0][2] - began[0][2]
