"""Where ranks meet to make a process group: a store that the first of them has started, at whatever port was free. Nobody can take that away meanwhile."""

from __future__ import annotations

import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

GROUP = "the default process group"
_stores: dict[str, Any] = {}
"""Stores of this process, by what they're for."""


def start(purpose: str) -> tuple[str, int]:
    """Start a store in this process; return its address and port. The one before it for the same purpose is let go."""
    from torch.distributed import TCPStore

    address, _ = free_address()
    store = _stores[purpose] = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    return address, store.port


def join(purpose: str, address: str, port: int, timeout_s: float) -> Any:
    """Return the store at an address: this process's own if it's that."""
    from torch.distributed import TCPStore

    own = _stores.get(purpose)
    if own is not None and own.port == port:
        return own
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def ports() -> set[int]:
    """Return the ports of this process's stores."""
    return {store.port for store in _stores.values()}


def free_address() -> tuple[str, int]:
    """Return an address of this machine at which others find it, and a tcp port that's free just now."""
    address = "127.0.0.1"
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            address = "127.0.0.1"
            probe.bind((address, 0))
        return address, probe.getsockname()[1]
