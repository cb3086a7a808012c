"""Aborts collectives that would never end, from another thread, and creates the process group again.

NCCL's backend can be aborted. Gloo's can't: a rank that waits in C for a peer that won't come would wait for
half an hour. So its connections are shut down under it, whereupon it raises. They're found by the one thing
that only a gloo device has in this process: an epoll set with a listening TCP socket and no Unix socket
(asyncio's has one for waking up, ZeroMQ's have nothing else), other than the rendezvous store's.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

from monarch_nb._protocol.process_group import RemakeGroup
from monarch_nb._protocol.questions import ProcessGroup
from monarch_nb._rank import rendezvous
from monarch_nb._wire.loaded import loaded

_JOIN_S = 15.0


_own_groups: dict[str, tuple[list[Any], int]] = {}
"""Process groups that this package has made besides the default one, by owner, with the number of
participating ranks.
"""


def set_own_groups(owner: str, groups: list[Any], world_size: int) -> None:
    """Register process groups of this package: `abort` also ends operations in them."""
    _own_groups[owner] = (groups, world_size)
    if not groups:
        del _own_groups[owner]


def abort(world_size: int | None = None) -> int:
    """Abort the running collectives; return the number of aborted backends. Doesn't block: any thread may
    call it.

    Args:
        world_size: only if the default process group, or this package's own groups, have that many ranks.
    """
    torch = loaded("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not _concerns(distributed, world_size):
        return 0
    return _abort_nccl(distributed) + _shut_gloo(_store_ports(distributed))


def _concerns(distributed: Any, world_size: int | None) -> bool:
    sizes = {size for _, size in list(_own_groups.values())}
    if distributed.is_initialized():
        sizes.add(distributed.get_world_size())
    return bool(sizes) if world_size is None else world_size in sizes


def describe_group() -> ProcessGroup | None:
    """Return the default process group, if there is one. Doesn't block."""
    distributed = getattr(loaded("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return ProcessGroup(
        str(distributed.get_backend()),
        distributed.get_world_size(),
        distributed.get_rank(),
        _timeout_s(distributed),
    )


HELD_S = 7 * 86400.0
_held: dict[Any, float] = {}
"""Original time-outs of process groups whose time-outs are suspended."""


def hold(on: bool) -> None:
    """Suspend the time-outs of all process groups while a user debugs a rank, or resume them. Operations that
    wait already keep their time-outs.
    """
    distributed = getattr(loaded("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    groups = list(distributed.distributed_c10d._world.pg_map)
    if on:
        _held.update({g: _timeout_of(g, distributed) for g in groups if g not in _held})
    for group in groups:
        if on or group in _held:
            timeout_s = HELD_S if on else _held.pop(group)
            with suppress(Exception):  # a group that has been destroyed meanwhile
                distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
    if not on:
        _held.clear()


def _timeout_of(group: Any, distributed: Any) -> float:
    with suppress(Exception):  # each backend has another attribute for it
        return float(group._get_backend(group._device_types[0]).options._timeout.total_seconds())
    return float(distributed.default_pg_timeout.total_seconds())


def _timeout_s(distributed: Any) -> float:
    group = distributed.group.WORLD
    return _held[group] if group in _held else _timeout_of(group, distributed)


def _abort_nccl(distributed: Any) -> int:
    num = 0
    own = [group for groups, _ in list(_own_groups.values()) for group in groups]
    for group in [*distributed.distributed_c10d._world.pg_map, *own]:
        for device in list(getattr(group, "_device_types", ())):
            backend = group._get_backend(device)
            if type(backend).__name__ == "ProcessGroupNCCL":
                backend.abort()
                num += 1
    return num


def _store_ports(distributed: Any) -> set[int]:
    """Return the ports of the rendezvous, whose connections must stay."""
    ports = rendezvous.ports()
    if os.environ.get("MASTER_PORT", "").isdigit():
        ports.add(int(os.environ["MASTER_PORT"]))
    store = distributed.distributed_c10d._get_default_store() if distributed.is_initialized() else None
    while store is not None:
        ports.add(getattr(store, "port", 0))
        store = getattr(store, "underlying_store", None)
    return ports


def _shut_gloo(store_ports: set[int]) -> int:
    num = 0
    for watched in _epoll_sets():
        sockets = [s for fd in watched if (s := _as_socket(fd)) is not None]
        listening = [s for s in sockets if s.family != socket.AF_UNIX and _listens(s)]
        is_gloo = listening and all(s.family != socket.AF_UNIX for s in sockets)
        if is_gloo and not {s.getsockname()[1] for s in listening} & store_ports:
            num += 1
            for connected in [s for s in sockets if s not in listening]:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
        for found in sockets:
            found.close()
    return num


def _epoll_sets() -> list[list[int]]:
    """Return the descriptors that each epoll instance of this process watches."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                with open(f"/proc/self/fdinfo/{name}") as file:
                    found.append([int(line.split()[1]) for line in file if line.startswith("tfd:")])
    return found


def _as_socket(fd: int) -> socket.socket | None:
    """Return a socket object on a copy of the descriptor, if it's a stream socket."""
    try:
        copy = os.dup(fd)
    except OSError:
        return None
    try:
        found = socket.socket(fileno=copy)
        if found.type == socket.SOCK_STREAM:
            return found
        found.close()
    except OSError:
        os.close(copy)
    return None


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def count_groups_anew() -> None:
    """Reset the numbering of process groups, if this process has none.

    torch also counts a group that couldn't be made, and ranks find each other by that count: where only some
    have failed, all later ones would wait in vain.
    """
    distributed = getattr(loaded("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and not distributed.is_initialized():
        distributed.distributed_c10d._world.group_count = 0


def remake(wanted: RemakeGroup, rank: int) -> None:
    """Create the default process group again at a new rendezvous; all ranks call this together, also those
    without one.

    Args:
        wanted: the group; its store has been started by the rank at place 0.
        rank: this rank's number in the mesh.
    """
    address, port = wanted.store.address, wanted.store.port
    import torch.distributed as dist

    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()
    count_groups_anew()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)
    if wanted.backend == "nccl":
        import torch

        torch.cuda.set_device(torch.cuda.current_device())
    store = rendezvous.join(rendezvous.GROUP, address, port, _JOIN_S)
    dist.init_process_group(
        wanted.backend,
        store=store,
        rank=wanted.places[rank],
        world_size=wanted.world_size,
        timeout=timedelta(seconds=_JOIN_S),
    )
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=wanted.timeout_s), None)
