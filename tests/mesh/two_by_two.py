"""The mesh that most tests use: hosts=2, gpus=2, on one host or on two."""

from __future__ import annotations

from monarch_nb.actor import HostMesh, ProcMesh


def spawn_two_by_two(hosts: HostMesh, **options: object) -> ProcMesh:
    """Spawn hosts=2, gpus=2 whatever the hosts are."""
    per_host = {"gpus": 2} if hosts.sizes else {"hosts": 2, "gpus": 2}
    return hosts.spawn_procs(per_host, **options)  # type: ignore[arg-type]
