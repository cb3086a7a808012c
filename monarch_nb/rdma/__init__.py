"""The data plane: handles travel in messages, bytes from memory to memory by the fastest available path.

    >>> import torch
    >>> from monarch_nb.rdma import RDMABuffer
    >>> buffer = RDMABuffer(torch.arange(8.0))               # doctest: +SKIP
    >>> mine = torch.empty(8)
    >>> buffer.read_into(mine).get()                         # doctest: +SKIP

Names below are loaded when they are first used: most programs move no bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch_nb.rdma import broadcasting as _broadcasting

if TYPE_CHECKING:
    from monarch_nb.rdma.action import RDMAAction
    from monarch_nb.rdma.availability import get_rdma_backend, is_ibverbs_available
    from monarch_nb.rdma.broadcast.buffers import BroadcastReceipt
    from monarch_nb.rdma.buffer import RDMABuffer
    from monarch_nb.rdma.paths import use_path
    from monarch_nb.rdma.published import Published, load_into, publish
    from monarch_nb.rdma.segments import empty
    from monarch_nb.rdma.transfer import Receipt, Transfer

_WHERE = {
    "BroadcastReceipt": "broadcast.buffers",
    "Published": "published",
    "RDMAAction": "action",
    "RDMABuffer": "buffer",
    "Receipt": "transfer",
    "Transfer": "transfer",
    "empty": "segments",
    "get_rdma_backend": "availability",
    "is_ibverbs_available": "availability",
    "load_into": "published",
    "publish": "published",
    "use_path": "paths",
}

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


def _broadcasts() -> tuple[Any, Any]:
    from monarch_nb.rdma.broadcast import buffers as broadcast  # loaded by the first broadcast
    from monarch_nb.rdma.broadcast import leader

    return broadcast, leader


_broadcasting.provide(_broadcasts)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
