"""Which version of a model its publishers hold: so that a reader never takes a mix of two.

Each publisher has two counters in registered memory: versions begun, and versions done. They differ while
it writes. A reader looks at them before it reads, and again afterwards: if all were equal and have stayed as
they were, all that it has read is of one version; else it reads again. That's a sequence lock (Lameter,
"Effective synchronization on Linux/NUMA systems", 2005), over the data plane and for several writers.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from monarch_nb.exceptions import MeshUsageError, TransferTimeout
from monarch_nb.rdma.buffer import RDMABuffer, handle_of, make_job
from monarch_nb.rdma.data_plane import data_plane
from monarch_nb.rdma.path import READ

_BEGUN, _DONE = 0, 1
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02
"""How often a reader that waits looks: less often each time."""

_ours: dict[tuple[int, int], Any] = {}
"""Counters of this process, by slot and key of their registration."""
_lock = threading.Lock()


def new_counter(version: int) -> RDMABuffer:
    """Register counters that begin with a version.

    Raises:
        MeshUsageError: if that's no version.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise MeshUsageError(f"publish: a version is a whole number of at least 0, not {version!r}")
    import numpy

    memory = numpy.array([version, version], dtype=numpy.int64)
    counter = RDMABuffer(memory)
    with _lock:
        _ours[_key(counter)] = memory
    return counter


def forget(counters: Sequence[RDMABuffer]) -> None:
    """These were dropped."""
    with _lock:
        for counter in counters:
            if handle_of(counter).is_ours:
                _ours.pop(_key(counter), None)


@contextmanager
def writing(counters: Sequence[RDMABuffer], version: int | None) -> Iterator[int]:
    """Write a new version, in the process that publishes; whoever reads meanwhile reads again.

    Raises:
        MeshUsageError: if this process hasn't published it, or the version isn't newer.
    """
    memory = _own(counters)
    before = int(memory[_DONE])
    new = before + 1 if version is None else version
    if not isinstance(new, int) or new <= before:
        raise MeshUsageError(f"updating: a new version is a number above {before}, not {new!r}")
    memory[_BEGUN] = new
    yield new  # if this raises, what is there is no version: it stays begun, until the next one is done
    _finish_on_devices()
    memory[_DONE] = new


def _own(counters: Sequence[RDMABuffer]) -> Any:
    if not counters:
        raise MeshUsageError("updating: it was published without a version: publish(state, version=0)")
    with _lock:
        found = next(
            (m for c in counters if handle_of(c).is_ours and (m := _ours.get(_key(c))) is not None), None
        )
    if found is None:
        raise MeshUsageError(
            "updating: this process hasn't published this model, or has dropped it: whoever publishes writes"
        )
    return found


def _finish_on_devices() -> None:
    """Wait until what was queued on this process' GPU is done: others read it from now on."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _key(counter: RDMABuffer) -> tuple[int, int]:
    return handle_of(counter).slot, handle_of(counter).key


# --- readers


def settled(counters: Sequence[RDMABuffer], at_least: int | None, deadline: float | None) -> int:
    """Wait until all publishers hold the same version, at least `at_least`, and none is writing; return
    it.

    Raises:
        TransferTimeout: if that takes too long; it says how far publishers are.
        BufferGone: if one has dropped it, or has ended.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        states = _read(counters, deadline)
        version = states[0][_DONE]
        if set(states) == {(version, version)} and (at_least is None or version >= at_least):
            return version
        if deadline is not None and time.monotonic() + pause_s > deadline:
            raise TransferTimeout(_late(states, at_least))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def still(counters: Sequence[RDMABuffer], version: int, deadline: float | None) -> bool:
    """Say whether no publisher has begun another version."""
    return set(_read(counters, deadline)) == {(version, version)}


def _late(states: Sequence[tuple[int, int]], at_least: int | None) -> str:
    done = sorted({done for _, done in states})
    wanted = "one version that all publishers hold" if at_least is None else f"version {at_least}"
    writing_now = sum(begun != done for begun, done in states)
    more = f"; {writing_now} of {len(states)} publishers are writing" if writing_now else ""
    return f"{wanted} wasn't there in time: publishers hold {', '.join(map(str, done))}{more}"


def _read(counters: Sequence[RDMABuffer], deadline: float | None) -> list[tuple[int, int]]:
    import numpy

    found: list[Any] = [numpy.empty(2, dtype=numpy.int64) for _ in counters]
    left = None if deadline is None else max(0.001, deadline - time.monotonic())
    jobs = [make_job(READ, counter, into, left) for counter, into in zip(counters, found, strict=True)]
    data_plane().submit(jobs).get()
    return [(int(each[_BEGUN]), int(each[_DONE])) for each in found]
