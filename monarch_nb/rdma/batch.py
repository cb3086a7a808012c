"""Several transfers with one result: those that a path can fuse are combined, and a few run at a time."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch_nb.rdma import staging
from monarch_nb.rdma.path import WRITE, Job, Op, Path, PathUnavailable
from monarch_nb.rdma.transfer import Receipt

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane

MAX_WORKERS = 4
"""Maximum number of concurrent transfers."""

Unit = Callable[[], Receipt]


class Batch:
    """Jobs that are run together. Used by one thread, which works, too.

    Args:
        forced: the path that all have to take.
    """

    def __init__(self, plane: DataPlane, jobs: Sequence[Job], forced: str | None) -> None:
        self._plane = plane
        self._jobs = jobs
        self._forced = forced
        self._lock = threading.Lock()
        self._receipts: list[Receipt] = []
        self._failures: list[BaseException] = []

    def run(self) -> list[Receipt]:
        """Run all transfers. If one fails, cancel the others and raise its error."""
        if len(self._jobs) == 1:
            return [self._plane.run(self._jobs[0], self._forced)]
        units = self._units()
        self._todo = iter(units)
        num_helpers = min(MAX_WORKERS, len(units)) - 1
        helpers = [
            threading.Thread(target=self._work, name="monarch_nb-rdma-batch") for _ in range(num_helpers)
        ]
        for helper in helpers:
            helper.start()
        self._work()
        for helper in helpers:
            helper.join()
        if self._failures:
            raise self._failures[0]
        return self._receipts

    def _work(self) -> None:
        while not self._failures:
            with self._lock:
                unit = next(self._todo, None)
            if unit is None:
                return
            try:
                self._receipts.append(unit())
            except BaseException as error:
                self._failures.append(error)
                for job in self._jobs:
                    job.cancelled.set()

    def _units(self) -> list[Unit]:
        """Group the jobs into units of work: jobs of a path that can fuse them are one unit, each other job
        is its own.
        """
        fused: dict[tuple[str, Op], list[Job]] = {}
        single: list[Unit] = []
        for job in self._jobs:
            path = next(self._plane.ways(job.handle, job.local, self._forced, {}))
            if path.fuses and staging.is_plain(path, job):
                fused.setdefault((path.name, job.op), []).append(job)
            else:
                single.append(functools.partial(self._plane.run, job, self._forced))
        paths = self._plane.paths
        return [
            *(functools.partial(self._run_fused, paths[name], jobs) for (name, _), jobs in fused.items()),
            *single,
        ]

    def _run_fused(self, path: Path, jobs: Sequence[Job]) -> Receipt:
        start = time.perf_counter()
        try:
            path.transfer_together(jobs)
        except PathUnavailable:  # each transfer is run alone, as its own paths permit
            return together([self._plane.run(job, self._forced) for job in jobs], time.perf_counter() - start)
        receipt = Receipt(jobs[0].op, path.name, sum(job.nbytes for job in jobs), time.perf_counter() - start)
        self._plane.totals.add(receipt)
        return receipt


def together(receipts: Sequence[Receipt], seconds: float) -> Receipt:
    """Return one receipt for several transfers that took `seconds` in total."""
    if len(receipts) == 1:
        return receipts[0]
    why_not: dict[str, str] = {}
    for receipt in receipts:
        why_not.update(receipt.why_not)
    op: Op = "write" if {r.op for r in receipts} == {WRITE} else "read"
    path = "+".join(dict.fromkeys(r.path for r in receipts))
    return Receipt(op, path, sum(r.num_bytes for r in receipts), seconds, why_not)
