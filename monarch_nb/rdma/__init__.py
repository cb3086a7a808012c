"""The data plane: handles travel in messages, bytes take the best way there is.

The layers, lower ones first:

- layout, memory: where bytes lie; local memory of any kind
- handle, table: what travels, and how anybody knows whether it still holds
- regions, segments: what this process has registered; memory that others can map
- path, paths/: the ways: local, cuda_ipc, shm, verbs, tcp, message
- desk, link, batch: a process' data plane; how two of them talk
- buffer, action: what users touch
- published, boxes: whole models, sharded one way there and another way here
- broadcast, spreading: one to many; big arrays to all ranks of a mesh
- transfer, totals: what a transfer took, and all of them
"""

from __future__ import annotations

from monarch_nb.rdma.action import RDMAAction
from monarch_nb.rdma.availability import get_rdma_backend, is_ibverbs_available
from monarch_nb.rdma.broadcast import BroadcastReceipt
from monarch_nb.rdma.buffer import RDMABuffer
from monarch_nb.rdma.paths import use_path
from monarch_nb.rdma.published import Published, load_into, publish
from monarch_nb.rdma.segments import empty
from monarch_nb.rdma.transfer import Receipt, Transfer

__all__ = [
    "BroadcastReceipt",
    "Published",
    "RDMAAction",
    "RDMABuffer",
    "Receipt",
    "Transfer",
    "empty",
    "get_rdma_backend",
    "is_ibverbs_available",
    "load_into",
    "publish",
    "use_path",
]
