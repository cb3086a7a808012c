"""Interfaces to broadcasts for the lower modules of this package, on which broadcasts are built: the package
provides the implementation, loaded at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future
    from monarch_nb.actor.proc_mesh import ProcMesh
    from monarch_nb.rdma.broadcast.buffers import BroadcastReceipt
    from monarch_nb.rdma.broadcast.questions import Fill, Lead
    from monarch_nb.rdma.buffer import RDMABuffer
    from monarch_nb.rdma.data_plane import DataPlane
    from monarch_nb.rdma.link import Answer
    from monarch_nb.rdma.local_future import LocalFuture
    from monarch_nb.rdma.transfer import Receipt


class BroadcastToBuffers(Protocol):
    """`rdma.broadcast.buffers`."""

    def begin_spread(
        self, source: RDMABuffer, targets: Iterable[RDMABuffer], timeout: float | None = ..., /
    ) -> LocalFuture[BroadcastReceipt]:
        """Start to copy a buffer into other buffers."""

    def fill(self, plane: DataPlane, question: Fill, /) -> Receipt:
        """Read another process' buffer into one of this process, on request."""


class BroadcastToMesh(Protocol):
    """`rdma.broadcast.leader`."""

    def begin_broadcast(
        self, source: RDMABuffer, mesh: ProcMesh, name: str, timeout: float | None, /
    ) -> Future[BroadcastReceipt]:
        """Start to assign a buffer's array to a variable of a mesh's cells."""

    def lead_asked(self, question: Lead, /) -> Answer:
        """Copy a buffer to all ranks of this machine, at the request of another process."""


_load: Callable[[], tuple[BroadcastToBuffers, BroadcastToMesh]] | None = None


def provide(load: Callable[[], tuple[BroadcastToBuffers, BroadcastToMesh]]) -> None:
    """Set the function that loads the implementations."""
    global _load
    _load = load


def to_buffers() -> BroadcastToBuffers:
    """Return the implementation of broadcasts to buffers."""
    assert _load is not None, "monarch_nb/rdma/__init__ puts it in place"
    return _load()[0]


def to_mesh() -> BroadcastToMesh:
    """Return the implementation of broadcasts to all ranks of a mesh."""
    assert _load is not None, "monarch_nb/rdma/__init__ puts it in place"
    return _load()[1]
