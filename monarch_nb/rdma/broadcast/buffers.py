"""Broadcasts a buffer: every receiver passes the bytes on, so that N machines have them after about log N
steps.

The one who asks directs; the bytes go from holder to holder by the best way between each two. Between
machines a holder feeds one other at a time, for its network card is the limit. On a machine all that are left
read from the holder at once, as many as there are cores.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from monarch_nb._units import size_text, time_text
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.rdma.broadcast.questions import Fill
from monarch_nb.rdma.buffer import DEFAULT_TIMEOUT_S, RDMABuffer, deadline_of, handle_of
from monarch_nb.rdma.data_plane import DataPlane, data_plane
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.path import READ, Job
from monarch_nb.rdma.transfer import Receipt

MAX_STEPS = 32
"""Maximum number of concurrent copies, in all."""


@dataclass(frozen=True)
class BroadcastReceipt:
    """The receipt of a broadcast of one buffer to many receivers.

    Attributes:
        num_bytes: of the buffer.
        num_receivers: who has it now.
        receipts: what each copy took. Ranks of a machine may share one, or have none where the source itself
            is mapped.
        depth: the longest chain of copies, one after the other.
        seconds: until the last had it.
    """

    num_bytes: int
    num_receivers: int
    receipts: tuple[Receipt, ...]
    depth: int
    seconds: float

    def __str__(self) -> str:
        by_path: dict[str, int] = {}
        for receipt in self.receipts:
            by_path[receipt.path] = by_path.get(receipt.path, 0) + 1
        copies = (
            ", ".join(f"{num} by {path}" for path, num in by_path.items()) or "none, it's mapped where it is"
        )
        return (
            f"{size_text(self.num_bytes)} to {self.num_receivers} in {time_text(self.seconds)}; copies: "
            f"{copies}"
        )


class Spread:
    """One broadcast under way. Its state is changed under its lock.

    Args:
        source: who has the bytes.
        targets: who wants them.
        copy: copies from one to another, and blocks.
        width: how many may read from one holder of their machine at a time.
    """

    def __init__(
        self, source: Handle, targets: Sequence[Handle], copy: Callable[[Handle, Handle], Receipt], width: int
    ) -> None:
        self._copy = copy
        self._width = width
        self._lock = threading.Lock()
        self._holders: list[tuple[Handle, int]] = [(source, 0)]
        self._load: dict[int, int] = {}
        self._feeds: set[int] = set()
        self._waiting = list(targets)
        self._on_its_way: set[str] = {source.owner.machine}
        """Machines that have the bytes, or are about to get them."""
        self._num_running = 0
        self._over = threading.Event()
        self.failure: BaseException | None = None
        self.receipts: list[Receipt] = []
        self.depth = 0

    def run(self) -> None:
        """Copy until all targets have the bytes, or one copy has failed."""
        if not self._waiting:
            return
        if len(self._waiting) == 1:  # no further machine needs the bytes
            self.receipts.append(self._copy(self._holders[0][0], self._waiting.pop()))
            self.depth = 1
            return
        with ThreadPoolExecutor(min(MAX_STEPS, len(self._waiting)), "monarch_nb-rdma-broadcast") as pool:
            self._pool = pool
            with self._lock:
                self._start_steps()
            self._over.wait()
        if self.failure is not None:
            raise self.failure

    def _start_steps(self) -> None:
        """Start all steps that can start now."""
        while self.failure is None:
            step = self._next_step()
            if step is None:
                break
            self._num_running += 1
            self._pool.submit(self._take_step, *step)
        if not self._num_running and (self.failure is not None or not self._waiting):
            self._over.set()

    def _next_step(self) -> tuple[Handle, int, Handle] | None:
        for target in self._waiting:
            if target.owner.machine not in self._on_its_way:
                found = self._feeder()
            else:
                found = self._neighbour(target)
            if found is not None:
                self._waiting.remove(target)
                self._begin_copy(found[0], target)
                return (*found, target)
        return None

    def _begin_copy(self, holder: Handle, target: Handle) -> None:
        if target.owner.machine == holder.owner.machine:
            self._load[holder.key] = self._load.get(holder.key, 0) + 1
        else:
            self._on_its_way.add(target.owner.machine)
            self._feeds.add(holder.key)

    def _feeder(self) -> tuple[Handle, int] | None:
        """Return a holder that isn't sending to another machine at present; None if all are."""
        return next((h for h in self._holders if h[0].key not in self._feeds), None)

    def _neighbour(self, target: Handle) -> tuple[Handle, int] | None:
        """Return a holder on the target's machine that can serve one more reader; None if there is none."""
        near = [h for h in self._holders if h[0].owner.machine == target.owner.machine]
        return next((h for h in near if self._load.get(h[0].key, 0) < self._width), None)

    def _take_step(self, holder: Handle, depth: int, target: Handle) -> None:
        receipt, failure = None, None
        try:
            receipt = self._copy(holder, target)
        except BaseException as error:
            failure = error
        with self._lock:
            self._num_running -= 1
            if target.owner.machine == holder.owner.machine:
                self._load[holder.key] -= 1
            else:
                self._feeds.discard(holder.key)
            if receipt is not None:
                self.receipts.append(receipt)
                self._holders.append((target, depth + 1))
                self.depth = max(self.depth, depth + 1)
            self.failure = self.failure or failure
            self._start_steps()


def spread(source: RDMABuffer, targets: Iterable[RDMABuffer], timeout: float | None) -> BroadcastReceipt:
    """Copy `source` into all `targets`; see `RDMABuffer.broadcast_into`."""
    plane = data_plane()
    handles = [handle_of(target) for target in targets]
    deadline = deadline_of(timeout)
    start = time.perf_counter()
    running = Spread(
        handle_of(source), handles, lambda there, to: _fill(plane, there, to, deadline), os.cpu_count() or 1
    )
    running.run()
    seconds = time.perf_counter() - start
    return BroadcastReceipt(source.size(), len(handles), tuple(running.receipts), running.depth, seconds)


def _check(source: Handle, target: Handle) -> None:
    if target.nbytes != source.nbytes:
        raise MeshUsageError(
            f"{target} has {target.nbytes:,} bytes, the source {source.nbytes:,}: they must be equal"
        )
    if target.read_only:
        raise MeshUsageError(f"{target} is read-only")


def _fill(plane: DataPlane, source: Handle, target: Handle, deadline: float | None) -> Receipt:
    """Ask the target's owner to read the source into the target."""
    timeout_s = 3600.0 if deadline is None else max(0.001, deadline - time.monotonic())
    question = Fill(target, source, timeout_s)
    return fill(plane, question) if target.is_ours else plane.ask(question, timeout_s + 5.0)


def fill(plane: DataPlane, question: Fill) -> Receipt:
    """Read another process' buffer into one of this process, on request."""
    target = question.handle
    memory = plane.region_of(target).memory.at(target.layout)
    return plane.run(Job(READ, question.source, memory, deadline_of(question.timeout_s)))


def begin_spread(
    source: RDMABuffer, targets: Iterable[RDMABuffer], timeout: float | None = DEFAULT_TIMEOUT_S
) -> LocalFuture[BroadcastReceipt]:
    """Validate the targets, and run `spread` in a thread of its own."""
    wanted = list(targets)
    for target in wanted:
        if not isinstance(target, RDMABuffer):
            raise MeshUsageError(f"expected RDMABuffers to copy into, not a {type(target).__name__}")
        _check(handle_of(source), handle_of(target))
    return LocalFuture.of(lambda: spread(source, wanted, timeout))
