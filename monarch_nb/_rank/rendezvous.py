"""Starts and joins the store where ranks meet to create a process group. The first rank starts it, on a free
port, and holds that port from then on.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

from monarch_nb._protocol.script import Rendezvous

GROUP = "the default process group"
_stores: dict[str, Any] = {}
"""Stores of this process, by purpose."""


def start(purpose: str) -> tuple[str, int]:
    """Start a store in this process; return its address and port. An earlier store for the same purpose is
    closed.
    """
    from torch.distributed import TCPStore

    address, _ = free_address()
    store = _stores[purpose] = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    return address, store.port


def join(purpose: str, address: str, port: int, timeout_s: float) -> Any:
    """Join the store at an address: this process's own if it's the same."""
    from torch.distributed import TCPStore

    own = _stores.get(purpose)
    if own is not None and own.port == port:
        return own
    return TCPStore(
        address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )


MAX_RUNS = 64
_runs: dict[int, Any] = {}
"""Stores of scripts that run or wait, by port."""


def open_for_run() -> Rendezvous:
    """Return the rendezvous of one run of a script: a store of its own in this process, as torchrun's agent
    has one.

    Without torch, it's a free port.
    """
    try:
        from torch.distributed import TCPStore
    except ImportError:
        return Rendezvous(*free_address())
    address, _ = free_address()
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    _runs[store.port] = store
    for port in list(_runs)[:-MAX_RUNS]:  # runs that were refused or given up before they began
        _runs.pop(port, None)
    return Rendezvous(address, store.port, is_store=True)


def close_after_run(port: int) -> None:
    """Close a run's store, if it's this process's."""
    _runs.pop(port, None)


def ports() -> set[int]:
    """Return the ports of this process's stores."""
    return {*_runs, *(store.port for store in _stores.values())}


def free_address() -> tuple[str, int]:
    """Return an address of this machine at which others find it, and a tcp port that is free at present."""
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
