"""The snapshot of a mesh, which everything that displays its state renders. Pure.

model     the snapshot, its hosts and ranks
delta     what changes of it
messages  how it's asked for
text      it in words
"""

from monarch_nb._protocol.resources import Collective, GpuProcess, GpuStatus, History, Transfers
from monarch_nb.status.delta import FullStatus, HeadChange, StatusChange, StatusDelta, Versioned, apply
from monarch_nb.status.model import (
    STATES,
    TROUBLED,
    HostStatus,
    MeshHead,
    MeshStatus,
    MeshSummary,
    RankStatus,
)
from monarch_nb.status.text import collective_text, rank_text, waiting_text

__all__ = [
    "STATES",
    "TROUBLED",
    "Collective",
    "FullStatus",
    "GpuProcess",
    "GpuStatus",
    "HeadChange",
    "History",
    "HostStatus",
    "MeshHead",
    "MeshStatus",
    "MeshSummary",
    "RankStatus",
    "StatusChange",
    "StatusDelta",
    "Transfers",
    "Versioned",
    "apply",
    "collective_text",
    "rank_text",
    "waiting_text",
]
