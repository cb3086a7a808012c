"""A transfer in progress, and the receipt that describes its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from monarch_nb._client import waiting
from monarch_nb._transport import process_context
from monarch_nb._units import rate_text, size_text, time_text
from monarch_nb.rdma.local_future import LocalFuture
from monarch_nb.rdma.path import Job, Op

STOP_S = 5.0
"""How long a cancelled wait lasts until the transfer has stopped using the memory."""

LONG_S = 1.0
"""A transfer that takes longer is shown in a notebook while it's waited for."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of a transfer, or of several together.

    Attributes:
        op: `read` or `write`.
        path: name of the path: `local`, `shm`, `cuda_ipc`, `verbs`, `tcp`, or an added one; several are
            joined by `+`.
        num_bytes: bytes moved.
        seconds: duration from the call to the last byte.
        why_not: for each better path, why it was not taken.
        version: version of a published model.
    """

    op: Op
    path: str
    num_bytes: int
    seconds: float
    why_not: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = None

    @property
    def gb_per_s(self) -> float:
        """The speed in GB/s (10^9 bytes per second)."""
        return self.num_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        rest = "; ".join(f"not by {path}: {why}" for path, why in self.why_not.items())
        text = (
            f"{self.op} {size_text(self.num_bytes)} by {self.path} in {time_text(self.seconds)}, "
            f"{rate_text(self.num_bytes, max(self.seconds, 1e-9))}"
        )
        return f"{text} ({rest})" if rest else text


class Transfer(LocalFuture[Receipt]):
    """The transfer started by `read_into` or `write_from`: `.get()` it, or `await` it.

    Example:
        >>> receipt = buffer.read_into(tensor).get()   # doctest: +SKIP
        >>> print(receipt)                             # doctest: +SKIP
        read 256 MiB by shm in 31.2 ms, 8.6 GB/s
    """

    __slots__ = ("began", "jobs")

    def __init__(self, jobs: list[Job]) -> None:
        super().__init__()
        self.jobs = jobs
        self.began = time.monotonic()
        self._what = f"{jobs[0].op} of {jobs[0].handle}" if jobs else "nothing"

    @property
    def num_bytes(self) -> int:
        """The number of bytes to move."""
        return sum(job.nbytes for job in self.jobs)

    @property
    def done_bytes(self) -> int:
        """The number of bytes moved so far."""
        return sum(job.done_bytes for job in self.jobs)

    def cancel(self) -> None:
        """Cancel the transfer; no further bytes are moved."""
        for job in self.jobs:
            job.cancelled.set()

    def _wait(self, timeout: float | None) -> bool:
        try:
            return super()._wait(timeout)
        except KeyboardInterrupt:
            self.cancel()
            super()._wait(STOP_S)  # an interrupted caller may reuse the memory
            raise

    def _wait_for(self, ended: threading.Event, timeout: float | None) -> bool:
        if (
            waiting.on_long is None
            or process_context.rank is not None
            or threading.current_thread() is not threading.main_thread()
        ):
            return ended.wait(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        if ended.wait(LONG_S if timeout is None else min(LONG_S, timeout)):
            return True
        over = waiting.on_long(self, self.began)
        try:
            return ended.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        finally:
            over()

    def __repr__(self) -> str:
        state = "done" if self.done() else f"{size_text(self.done_bytes)} of {size_text(self.num_bytes)}"
        return f"<Transfer: {self._what}: {state}>"
