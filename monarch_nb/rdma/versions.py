"""Tracks which version of a model its publishers hold, so that a reader never takes a mix of two.

Each publisher has two counters in registered memory: versions begun, and versions done. They differ while
it writes. A reader looks at them before it reads, and again afterwards: if all were equal and have stayed as
they were, all that it has read is of one version; else it reads again. That's a sequence lock (Lameter,
"Effective synchronization on Linux/NUMA systems", 2005), over the data plane and for several writers.

A writer that leaves no gap would starve readers. So a reader that has failed says for how long it needs what
is there: it writes that, in microseconds, beside the counters. The next update begins when that time is over,
or when the reader has what it needs and writes a 0. A reader that dies holds the writer up just that long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from monarch_nb._wire.loaded import loaded
from monarch_nb.exceptions import MeshUsageError, RDMAError, TransferTimeout
from monarch_nb.rdma.buffer import RDMABuffer, deadline_of, handle_of, make_job
from monarch_nb.rdma.data_plane import data_plane
from monarch_nb.rdma.memory import memory_of
from monarch_nb.rdma.path import READ, WRITE, Job

_BEGUN, _DONE, _ASKED = 0, 1, 2
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02
"""Maximum interval at which a waiting reader looks; the interval grows."""

_FIRST_ASK_S = 0.05
_LONGEST_ASK_S = 10.0
"""How long a reader asks a writer to pause: at first, and at most."""
_HOLD_POLL_S = 0.0005
_TELL_S = 10.0

_ours: dict[tuple[int, int], Any] = {}
"""Counters of this process, by slot and key of their registration."""
_lock = threading.Lock()


def new_counter(version: int) -> RDMABuffer:
    """Register version counters that start at `version`.

    Raises:
        MeshUsageError: if `version` isn't a whole number of at least 0.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise MeshUsageError(f"publish: a version is a whole number of at least 0, not {version!r}")
    import numpy

    memory = numpy.array([version, version, 0], dtype=numpy.int64)
    counter = RDMABuffer(memory)
    with _lock:
        _ours[_key(counter)] = memory
    return counter


def forget(counters: Sequence[RDMABuffer]) -> None:
    """Discard counters that were dropped."""
    with _lock:
        for counter in counters:
            if handle_of(counter).is_ours:
                _ours.pop(_key(counter), None)


@contextmanager
def writing(counters: Sequence[RDMABuffer], version: int | None) -> Iterator[int]:
    """Mark the block as writing a new version, in the process that publishes; a reader that reads meanwhile
    reads again.

    Raises:
        MeshUsageError: if this process hasn't published the model, or the version isn't newer.
    """
    memory = _own(counters)
    before = int(memory[_DONE])
    new = before + 1 if version is None else version
    if not isinstance(new, int) or new <= before:
        raise MeshUsageError(f"updating: a new version is a number above {before}, not {new!r}")
    _hold_still(memory)
    memory[_BEGUN] = new
    yield new  # if this raises, there is no valid version: it stays begun until the next one is complete
    _finish_on_devices()
    memory[_DONE] = new


def _hold_still(memory: Any) -> None:
    """Wait as long as readers have asked for. A reader may ask again meanwhile, for another duration each
    time.
    """
    limit = time.monotonic() + _LONGEST_ASK_S
    while (asked := int(memory[_ASKED])) and time.monotonic() < limit:
        until = min(limit, time.monotonic() + asked / 1e6)
        while int(memory[_ASKED]) == asked and time.monotonic() < until:
            time.sleep(_HOLD_POLL_S)
        if int(memory[_ASKED]) == asked:
            break  # the asker has exceeded its time, or has ended
    memory[_ASKED] = 0


def _own(counters: Sequence[RDMABuffer]) -> Any:
    if not counters:
        raise MeshUsageError("updating: it was published without a version: publish(state, version=0)")
    with _lock:
        found = next(
            (m for c in counters if handle_of(c).is_ours and (m := _ours.get(_key(c))) is not None), None
        )
    if found is None:
        raise MeshUsageError(
            "updating: this process hasn't published this model, or has dropped it: only a process that "
            "publishes a model can update it"
        )
    return found


def _finish_on_devices() -> None:
    """Wait until the work queued on this process' GPU is complete, because others read the results from now
    on.
    """
    torch = loaded("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _key(counter: RDMABuffer) -> tuple[int, int]:
    return handle_of(counter).slot, handle_of(counter).key


# --- readers


class Turn:
    """One reader's attempt to get one version completely; if versions change too quickly, it has writers
    pause.

    Args:
        counters: of all publishers.
        deadline: time limit (`time.monotonic`); None: none.
    """

    def __init__(self, counters: Sequence[RDMABuffer], deadline: float | None) -> None:
        self._counters = counters
        self._deadline = deadline
        self._num_asked = 0
        self._began = time.monotonic()

    def settled(self, at_least: int | None) -> int:
        """Wait until all publishers hold the same version, at least `at_least`, and none is writing; return
        it.

        Raises:
            TransferTimeout: if that takes too long; it shows the publishers' versions.
            BufferGone: if a publisher has dropped the model, or has ended.
        """
        pause_s = _FIRST_PAUSE_S
        first: list[int] | None = None
        states: list[tuple[int, int]] = []
        while True:
            self._began = time.monotonic()
            states = self._look(states, at_least)
            done = [state[_DONE] for state in states]
            if len({number for state in states for number in state}) == 1 and _reaches(done[0], at_least):
                return done[0]
            if self._deadline is not None and time.monotonic() + pause_s > self._deadline:
                raise TransferTimeout(_late(states, at_least))
            first = first or done
            if done != first and all(_reaches(each, at_least) for each in done):
                self._ask()  # new versions arrive continuously, without a moment in which nobody writes
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _look(self, before: Sequence[tuple[int, int]], at_least: int | None) -> list[tuple[int, int]]:
        """Return the publishers' counters. If no time is left to read them, the time-out's error describes
        those read before.
        """
        try:
            return _read(self._counters, self._deadline)
        except TransferTimeout:
            if not before:
                raise
            raise TransferTimeout(_late(before, at_least)) from None

    def still(self, version: int) -> bool:
        """Return whether all publishers still hold this version; if not, ask them to pause for the next
        attempt.
        """
        is_still = set(_read(self._counters, self._deadline)) == {(version, version)}
        if not is_still:
            self._ask()
        return is_still

    def end_turn(self) -> None:
        """Let writers continue, if they were asked to pause."""
        if self._num_asked:
            with suppress(RDMAError):  # a publisher has ended: no writer pauses there
                self._tell(0)

    def _ask(self) -> None:
        """Ask writers to pause for twice the duration of the last attempt, and longer each time."""
        self._num_asked += 1
        wanted_s = max(_FIRST_ASK_S, 2 * (time.monotonic() - self._began)) * 2 ** min(self._num_asked - 1, 6)
        self._tell(int(min(wanted_s, _LONGEST_ASK_S) * 1e6) + self._num_asked)

    def _tell(self, asked_us: int) -> None:
        import numpy

        left = deadline_of(_TELL_S)
        asked = numpy.array([asked_us], dtype=numpy.int64)
        data_plane().submit(
            [
                Job(WRITE, handle_of(counter).part((slice(_ASKED, _ASKED + 1),)), memory_of(asked), left)
                for counter in self._counters
            ]
        ).get()


def _reaches(version: int, at_least: int | None) -> bool:
    return at_least is None or version >= at_least


def settled(counters: Sequence[RDMABuffer], at_least: int | None, deadline: float | None) -> int:
    """Wait for a version that all publishers hold, at least `at_least`, and return it.

    Raises:
        TransferTimeout, BufferGone: as `Turn.settled`.
    """
    turn = Turn(counters, deadline)
    try:
        return turn.settled(at_least)
    finally:
        turn.end_turn()


def _late(states: Sequence[tuple[int, int]], at_least: int | None) -> str:
    done = sorted({done for _, done in states})
    wanted = "one version that all publishers hold" if at_least is None else f"version {at_least}"
    writing_now = sum(begun != done for begun, done in states)
    more = f"; {writing_now} of {len(states)} publishers are writing" if writing_now else ""
    return f"{wanted} wasn't published in time: publishers hold {', '.join(map(str, done))}{more}"


def _read(counters: Sequence[RDMABuffer], deadline: float | None) -> list[tuple[int, int]]:
    import numpy

    found: list[Any] = [numpy.empty(3, dtype=numpy.int64) for _ in counters]
    left = None if deadline is None else max(0.001, deadline - time.monotonic())
    jobs = [make_job(READ, counter, into, left) for counter, into in zip(counters, found, strict=True)]
    data_plane().submit(jobs).get()
    return [(int(each[_BEGUN]), int(each[_DONE])) for each in found]
