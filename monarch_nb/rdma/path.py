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
        """Bytes to move."""
        return self.handle.nbytes

    def pieces(self) -> list[Piece]:
        """Return the pieces that are contiguous on both sides: offsets from `handle.address` and from
        `local.address`.
        """
        return list(pieces(self.handle.layout, self.local.layout))

    def moved(self, nbytes: int) -> None:
        """Note that so many bytes more are there, and `check`."""
        self.done_bytes += nbytes
        if self.on_progress is not None:
            self.on_progress()
        self.check()

    def remaining_s(self, at_most: float) -> float:
        """Return how long one may wait now, `at_most` so long.

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
        """Raise if the time is up, or nobody waits any more. Paths call it between chunks."""
        if self.cancelled.is_set():
            raise RDMAError(f"the {self.op} was cancelled after {self.done_bytes:,} of {self.nbytes:,} bytes")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise self.late()

    def late(self) -> TransferTimeout:
        """Return the error for a time-out."""
        return TransferTimeout(
            f"the {self.op} of {self.handle} was not over in time: {self.done_bytes:,} of "
            f"{self.nbytes:,} bytes were moved; give it a longer timeout=, or look at the path: %mesh "
            "doctor"
        )

    def gone(self, why: str = "") -> BufferGone:
        """Return the error for a buffer that isn't there any more."""
        return gone(self.handle, why)


def gone(handle: Handle, why: str = "") -> BufferGone:
    """Return the error for a buffer that isn't there any more; without a reason, it was dropped."""
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
        """Say whether a small transfer takes microseconds, because no other process has to be asked first.
        It's then done in the thread of whoever asks.
        """
        return False

    def concerns(self, handle: Handle, local: Memory) -> bool:
        """Say whether this path is meant for such memory: if not, nobody is told why it isn't taken."""
        return True

    @abstractmethod
    def refusal(self, handle: Handle, local: Memory) -> str:
        """Say why this path can't be taken between these two, in a few words; empty if it can. Costs no
        message.
        """

    @abstractmethod
    def transfer(self, job: Job) -> None:
        """Move the bytes; return when all are there and the buffer was there all the time.

        Raises:
            PathUnavailable: it can't be, as was found out only now. Nothing has been moved, another path may
                try.
            BufferGone: see `Job.gone`.
            TransferTimeout: see `Job.remaining_s`.
            PathFailed: anything else.
        """

    def transfer_together(self, jobs: Sequence[Job]) -> None:
        """Do several transfers that need no staging in one go; called if `fuses`. Errors as of `transfer`."""
        for job in jobs:
            self.transfer(job)

    def answer(self, question: Question[object], region: Region) -> object:
        """Answer what the same path in another process asks by `DataPlane.ask`; `region` is the buffer it
        asks about.
        """
        raise NotImplementedError(f"{self.name} asks nothing")

    def forget(self, region: Region) -> None:
        """Undo what was made for a region that its owner is about to drop. When this returns nobody may reach
        the memory by this path.
        """
        return

    def close(self) -> None:
        """End threads and close what is open, because the process leaves its mesh."""
        return
