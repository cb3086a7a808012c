"""Computes the environment variables that torchrun sets for each process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from monarch_nb._shape import elastic_numbers
from monarch_nb._wire import address


def elastic_variables(procs: Sequence[int], rank: int, master_addr: str, master_port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for the process `rank` of `procs`."""
    on_hosts = [address.host_of(proc) for proc in procs]
    hosts = list(dict.fromkeys(on_hosts))
    here = [r for r, host in enumerate(on_hosts) if host == on_hosts[rank]]
    numbers = {
        "rank": rank,
        "world_size": len(procs),
        "local_rank": here.index(rank),
        "local_world_size": len(here),
    }
    return {
        **elastic_numbers(numbers),
        "GROUP_RANK": str(hosts.index(on_hosts[rank])),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "ROLE_NAME": "rank",
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
    }


def own_device() -> dict[str, str]:
    """Return LOCAL_RANK for a process that sees a single GPU: that is its device 0, whatever its number on
    the host is, and scripts choose theirs by LOCAL_RANK. Empty for others.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return {"LOCAL_RANK": "0"} if visible and "," not in visible else {}
