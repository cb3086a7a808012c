"""Notes of ranks: when each thing that they do begins, and what CPU time they have taken by then.

A note is a command in the stream as any other, so nothing waits for it, and what drives the ranks may be far
ahead of them.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any, NamedTuple

import torch

import monarch_nb

Note = tuple[str, float, float, float]
"""What begins, the CPU seconds so far of this rank and of its thread that computes, and the time."""
_notes: list[Note] = []


class Seconds(NamedTuple):
    """The duration of something on ranks.

    Attributes:
        cpu: CPU seconds of a rank, with all its threads. Gloo's thread is among them: it looks for data in a
            loop from when the other rank has sent its part until this one takes it.
        wall: seconds that passed.
        thread: CPU seconds of the thread that computes, and begins all collectives.
    """

    cpu: float
    wall: float
    thread: float


def nothing(*_: Any) -> torch.Tensor:
    """Return what functions of ranks return that have no result."""
    return torch.zeros(())


@monarch_nb.remote(propagate=nothing)
def note(which: str) -> torch.Tensor:
    """Note the time at which something begins."""
    _notes.append((which, time.process_time(), time.thread_time(), time.perf_counter()))
    return nothing()


def read_notes() -> list[Note]:
    """Return a rank's notes, and forget them."""
    found = list(_notes)
    _notes.clear()
    return found


def between(of_ranks: list[list[Note]]) -> list[tuple[str, Seconds]]:
    """Return what was done between each two notes: CPU seconds of a rank and of its thread, the means of
    all, and the first rank's wall seconds.
    """
    at_once = zip(*of_ranks, strict=True)
    return [(began[0][0], _seconds(began, ended)) for began, ended in itertools.pairwise(at_once)]


def _seconds(began: Any, ended: Any) -> Seconds:
    pairs = list(zip(began, ended, strict=True))
    cpu, thread = (statistics.mean(after[n] - before[n] for before, after in pairs) for n in (1, 2))
    return Seconds(cpu, ended[0][3] - began[0][3], thread)
