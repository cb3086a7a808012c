"""The environment that torchrun sets."""

from __future__ import annotations

import enum
import socket
from contextlib import suppress

from monarch_nb._rank import rendezvous
from monarch_nb._rank.elastic import elastic_variables
from monarch_nb.actor.handle import placement_of
from monarch_nb.actor.proc_mesh import ProcMesh


class AddrType(enum.Enum):
    """The kind of address of a host that others connect to."""

    Default = "IPv6, or else IPv4"
    IPv4 = "IPv4"
    IPv6 = "IPv6"


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


def elastic_environment(proc_mesh: ProcMesh, master_addr: str, master_port: int) -> list[dict[str, str]]:
    """Return the variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and so on for each process of a mesh, in
    rank order.

    The processes of one host form one group; LOCAL_RANK is the index of a process in its group.
    """
    procs = placement_of(proc_mesh).procs
    return [elastic_variables(procs, rank, master_addr, master_port) for rank in range(len(procs))]


def host_and_port(kind: AddrType | None) -> tuple[str, int]:
    """Return an address of this host that other hosts can connect to, and a free tcp port.

    Raises:
        ValueError: if `kind` isn't an AddrType.
        RuntimeError: if this host has no address of that kind.
    """
    found, port = rendezvous.free_address()
    if kind is None:
        return found, port
    if not isinstance(kind, AddrType):
        raise ValueError(f"use_ipaddr is None or one of {', '.join(map(str, AddrType))}; not {kind!r}")
    for family in _FAMILIES[kind]:
        with suppress(OSError):
            rows = socket.getaddrinfo(socket.gethostname(), port, family, socket.SOCK_STREAM)
            usable = [str(row[4][0]) for row in rows if not str(row[4][0]).startswith(("fe80:", "169.254."))]
            if usable:
                return usable[0], port
    raise RuntimeError(
        f"this host, {socket.gethostname()}, has no {kind.value} address that others could connect to"
    )


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Set the environment variables that torchrun sets, on every process. The rendezvous is on rank 0's host,
    at a free port.

    Args:
        master_addr, master_port: the address and port of the rendezvous; by default chosen on rank 0's host.
        use_ipaddr: the kind of address; by default the one that the host's name resolves to.
    """
    first = proc_mesh.flatten("rank").slice(rank=slice(0, 1))
    if master_addr is None or master_port is None:
        address, port = (await first.execute(host_and_port, use_ipaddr)).item()
        master_addr, master_port = master_addr or address, master_port or port
    await proc_mesh.set_environment(elastic_environment(proc_mesh, master_addr, master_port))


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Set the environment variables that torchrun sets, on every process; returns when they are set.

    Example:
        >>> procs = this_host().spawn_procs({"gpus": 4})  # doctest: +SKIP
        >>> setup_torch_elastic_env(procs)                # doctest: +SKIP
        >>> procs.execute(dist.init_process_group, "gloo").get()  # doctest: +SKIP
    """
    first = proc_mesh.flatten("rank").slice(rank=slice(0, 1))
    if master_addr is None or master_port is None:
        address, port = first.execute(host_and_port, use_ipaddr).get(30).item()
        master_addr, master_port = master_addr or address, master_port or port
    proc_mesh.set_environment(elastic_environment(proc_mesh, master_addr, master_port)).get(30)
