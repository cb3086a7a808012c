"""`RDMAAction`: a list of transfers that are executed together."""

from __future__ import annotations

from typing import Self

from monarch_nb.rdma.buffer import DEFAULT_TIMEOUT_S, RDMABuffer, deadline_of, make_job
from monarch_nb.rdma.data_plane import data_plane
from monarch_nb.rdma.memory import Local
from monarch_nb.rdma.path import READ, WRITE, Job
from monarch_nb.rdma.staging import queued_work
from monarch_nb.rdma.transfer import Receipt, Transfer


class RDMAAction:
    """Transfers that are begun together and waited for once. Several run at a time: don't let two of them
    write the same bytes.

    Example:
        >>> action = RDMAAction()                                   # doctest: +SKIP
        >>> for buffer, tensor in zip(buffers, tensors):            # doctest: +SKIP
        ...     action.read_remote(tensor, buffer)
        >>> print(action.submit(timeout=30).get())                  # doctest: +SKIP
        read 1.5 GiB by shm in 190 ms, 8.5 GB/s
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def read_remote(self, dst: Local, buffer: RDMABuffer) -> Self:
        """Add a read of `buffer` into local memory.

        Raises:
            MeshUsageError: as of `RDMABuffer.read_into`.
        """
        self._jobs.append(make_job(READ, buffer, dst, None))
        return self

    def write_remote(self, buffer: RDMABuffer, src: Local) -> Self:
        """Add a write of local memory into `buffer`.

        Raises:
            MeshUsageError: as of `RDMABuffer.write_from`.
        """
        self._jobs.append(make_job(WRITE, buffer, src, None))
        return self

    def submit(self, timeout: float | None = DEFAULT_TIMEOUT_S, *, path: str | None = None) -> Transfer:
        """Start all transfers of this action. An action can be submitted again, and then repeats them; one
        without transfers is complete at once.

        Args:
            timeout: seconds that all transfers together may take; None: no limit.
            path: use this path and no other (`shm`, `cuda_ipc`, `verbs`, `tcp`).
        """
        if not self._jobs:
            return _nothing()
        deadline = deadline_of(timeout)
        return data_plane().submit(
            [Job(j.op, j.handle, j.local, deadline, after=queued_work(j.local)) for j in self._jobs], path
        )

    def __len__(self) -> int:
        return len(self._jobs)


def _nothing() -> Transfer:
    """Return a transfer of no bytes that is already complete."""
    transfer = Transfer([])
    transfer.finish(Receipt(READ, "local", 0, 0.0))
    return transfer
