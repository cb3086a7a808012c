"""The abstract class of a path, a way of moving bytes: each path is a small module in `paths/`.

Others can add theirs: a class derived from `Path`, named by an entry point of the group
`monarch_nb.rdma_paths`, is tried before ours.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from monarch_nb.exceptions import BufferGone, RDMAError, TransferTimeout
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.layout import Piece, pieces
from monarch_nb.rdma.memory import Memory
from monarch_nb.rdma.question import Question

if TYPE_CHECKING:
    from monarch_nb.rdma.data_plane import DataPlane
    from monarch_nb.rdma.regions import Region

Op = Literal["read", "write"]
READ: Final = "read"
WRITE: Final = "write"


class PathUnavailable(Exception):
    """The error of a path that can't be used between these two processes, found only when it was tried;
    nothing has been moved. The next one is tried.
    """


@dataclass
class Job:
    """A transfer, as a path sees it. Used by the one thread that runs it.

    Attributes:
        op: `read`: from the buffer into local memory; `write`: the other way.
        handle: the buffer, or a part of it.
        local: local memory of the same size.
        deadline: when it must be over (`time.monotonic`); None: never.
        after: a CUDA event that must pass before local GPU memory is touched: what was queued when the
            transfer was asked for.
        cancelled: set when no thread waits for the transfer any more.
        done_bytes: bytes moved so far; the path adds to it.
    """

    op: Op
    handle: Handle
    local: Memory
    deadline: float | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    done_bytes: int = 0
    on_progress: Callable[[], None] | None = None
    after: Any = None

    @property
    def nbytes(self) -> int:
        """The number of bytes to move."""
        return self.handle.nbytes

    def pieces(self) -> list[Piece]:
        """Return the pieces that are contiguous on both sides, with offsets from `handle.address` and
        `local.address`.
        """
        return list(pieces(self.handle.layout, self.local.layout))

    def moved(self, nbytes: int) -> None:
        """Record that `nbytes` more bytes were moved, and `check`."""
        self.done_bytes += nbytes
        if self.on_progress is not None:
            self.on_progress()
        self.check()

    def remaining_s(self, at_most: float) -> float:
        """Return the time that is left to wait, at most `at_most`, in seconds.

        Raises:
            TransferTimeout: if the time is up.
        """
        if self.deadline is None:
            return at_most
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.late()
        return min(left, at_most)

    def check(self) -> None:
        """Raise if the deadline has passed, or the transfer was cancelled. Paths call this between chunks."""
        if self.cancelled.is_set():
            raise RDMAError(f"the {self.op} was cancelled after {self.done_bytes:,} of {self.nbytes:,} bytes")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise self.late()

    def late(self) -> TransferTimeout:
        """Return the error for a transfer that exceeded its time-out."""
        return TransferTimeout(
            f"the {self.op} of {self.handle} was not over in time: {self.done_bytes:,} of "
            f"{self.nbytes:,} bytes were moved; give it a longer timeout=, or look at the path: %mesh "
            "doctor"
        )

    def gone(self, why: str = "") -> BufferGone:
        """Return the error for a buffer that no longer exists."""
        return gone(self.handle, why)


def gone(handle: Handle, why: str = "") -> BufferGone:
    """Return the error for a buffer that no longer exists; the default reason is that its owner dropped
    it.
    """
    reason = why or "its owner has dropped it"
    return BufferGone(f"the buffer {handle} is gone: {reason}. Ask for a new handle")


class Path(ABC):
    """The base of paths: one way of moving bytes. Made once per process, by `DataPlane`, when first looked
    at.

    `refusal` and `transfer` are called in the process that reads or writes, `answer` in the owner's.
    `transfer` and `answer` run in threads of the data plane and may block; several at once.
    """

    name: str
    """Name for display: `verbs`."""
    reaches_gpus = False
    """Whether local memory and the buffer may be on a GPU. If not, the data plane brings local GPU memory
    through the host.
    """

    takes_strides = False
    """Whether it moves strided elements at full speed. If not, the data plane copies scattered ones into
    contiguous memory.
    """

    encrypts = False
    """Whether bytes that leave the machine are encrypted."""
    fuses = False
    """Whether many transfers cost less together (`transfer_together`)."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane

    def is_quick(self, handle: Handle) -> bool:
        """Return whether a small transfer takes microseconds, because no other process has to be asked first.
        Such a transfer runs in the caller's thread.
        """
        return False

    def concerns(self, handle: Handle, local: Memory) -> bool:
        """Return whether this path is meant for such memory; if not, receipts don't explain why it wasn't
        used.
        """
        return True

    @abstractmethod
    def refusal(self, handle: Handle, local: Memory) -> str:
        """Return why this path can't move bytes between these two, in a few words; empty if it can. Sends no
        message.
        """

    @abstractmethod
    def transfer(self, job: Job) -> None:
        """Move the bytes. Return when all were moved, and the buffer existed throughout.

        Raises:
            PathUnavailable: if the path turns out not to work. Nothing has been moved; another path may be
                tried.
            BufferGone: see `Job.gone`.
            TransferTimeout: see `Job.remaining_s`.
            PathFailed: for any other error.
        """

    def transfer_together(self, jobs: Sequence[Job]) -> None:
        """Run several transfers that need no staging as one operation; called if `fuses` is set. Raises the
        same errors as `transfer`.
        """
        for job in jobs:
            self.transfer(job)

    def answer(self, question: Question[object], region: Region) -> object:
        """Return the answer to a question that the same path in another process has sent by `DataPlane.ask`;
        `region` is the buffer in question.
        """
        raise NotImplementedError(f"{self.name} asks nothing")

    def forget(self, region: Region) -> None:
        """Release what this path has created for a region that its owner is about to drop. When this returns,
        no process can access the memory by this path.
        """
        return

    def close(self) -> None:
        """End threads and close open resources, because the process leaves its mesh."""
        return
