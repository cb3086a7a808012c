"""Tells the user about the cost of transfers without RDMA, and the reason: once for each host with which this
process exchanges much data.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from monarch_nb._units import rate_text, size_text
from monarch_nb.rdma.path import Job
from monarch_nb.rdma.paths import chosen

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane

MUCH_BYTES = 64 << 20
BETTER = "verbs"


class Notices:
    """The notices of one process, with the bytes moved to and from each host. Thread-safe."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._moved: dict[str, int] = {}
        self._lock = threading.Lock()

    def moved(self, job: Job, seconds: float) -> None:
        """Count a transfer by tcp; print the notice if the total of the host has just exceeded the limit."""
        handle = job.handle
        if handle.is_near or chosen() is not None:
            return
        host = handle.owner.host
        with self._lock:
            before = self._moved.get(host, 0)
            self._moved[host] = before + job.nbytes
        if before <= MUCH_BYTES < before + job.nbytes:
            print(self.text(job, seconds), file=sys.stderr, flush=True)

    def text(self, job: Job, seconds: float) -> str:
        """Return the notice, one line."""
        handle = job.handle
        where = f"{'from' if job.op == 'read' else 'to'} {handle.owner.label} on {handle.owner.host}"
        rate = rate_text(job.nbytes, max(seconds, 1e-9))
        better = self._plane.paths.get(BETTER)
        why = better.refusal(handle, job.local) if better is not None else ""
        return (
            f"rdma: {size_text(job.nbytes)} {where} went by tcp, {rate}; no RDMA: "
            f"{why or 'it was tried and failed'}. More: %mesh doctor"
        )
