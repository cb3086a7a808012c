"""Starts and joins the store where ranks meet to create a process group. The first rank starts it, on a free
port, and holds that port from then on.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
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


FIRST_PORT = 20_000
_NUM_TRIES = 64
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_address() -> tuple[str, int]:
    """Return an address of this machine at which others find it, and a tcp port that is free at present. It's
    none that the system gives to connections: until it's listened at, one of these could take it.
    """
    address = _own_address()
    for port in [*_some_ports(), 0]:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return address, probe.getsockname()[1]
    raise OSError("this machine has no free tcp port")


def _own_address() -> str:
    with socket.socket() as probe, suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        probe.bind((address, 0))  # the name may be that of another machine
        return address
    return "127.0.0.1"


def _some_ports() -> list[int]:
    """Return ports to try, in random order: each program has others, and a user's seed is left alone."""
    first = 32_768
    with suppress(OSError, ValueError, IndexError):
        first = int(_EPHEMERAL.read_text().split()[0])
    ports = range(FIRST_PORT, first)
    return random.SystemRandom().sample(ports, min(_NUM_TRIES, len(ports)))
