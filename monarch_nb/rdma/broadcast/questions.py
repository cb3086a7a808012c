"""Types of requests that a broadcast sends to other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from monarch_nb._protocol.base import Record
from monarch_nb.rdma.handle import Handle
from monarch_nb.rdma.question import Question
from monarch_nb.rdma.transfer import Receipt

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh
    from monarch_nb.rdma.buffer import RDMABuffer


class Fill(Question[Receipt], frozen=True):
    """Reads another buffer, `source`, into this one."""

    to = "fill"
    source: Handle
    timeout_s: float


class Lead(Record, frozen=True):
    """Asks the first rank of a machine to bring a buffer to all ranks of it; answered by a
    `BroadcastReceipt`.

    Attributes:
        name: the variable that the buffer becomes on each rank.
        timeout: seconds until the reading rank gives up; None: never.
    """

    to: ClassVar[str] = "lead"
    source: RDMABuffer
    mesh: ProcMesh
    name: str
    timeout: float | None
