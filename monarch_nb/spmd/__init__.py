"""Programs that torchrun would start: the environment they expect, on each process of a mesh."""

from __future__ import annotations

from typing import Any

from monarch_nb._shape import elastic_numbers
from monarch_nb.actor.actor_mesh import Actor
from monarch_nb.actor.endpoint import endpoint
from monarch_nb.actor.proc_mesh import ProcMesh

__all__ = ["SPMDActor", "elastic_environment", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]


def elastic_environment(proc_mesh: ProcMesh, master_addr: str, master_port: int) -> list[dict[str, str]]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR ... for each process of a mesh, in rank order.

    The dimensions that the hosts have are the outer ones; what is inside of a host gives LOCAL_RANK.
    """
    world_size = len(proc_mesh)
    num_hosts = min(len(proc_mesh._hosts), world_size)
    per_host = world_size // num_hosts
    return [
        {
            **elastic_numbers(
                {"rank": rank, "world_size": world_size, "local_rank": rank % per_host, "local_world_size": per_host}
            ),
            "GROUP_RANK": str(rank // per_host),
            "GROUP_WORLD_SIZE": str(num_hosts),
            "ROLE_NAME": "rank",
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": str(master_port),
        }
        for rank in range(world_size)
    ]


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None
) -> None:
    """Set the environment that torchrun sets, on every process. The rendezvous is on rank 0's host, at a free port."""
    first = proc_mesh.flatten("rank").slice(rank=slice(0, 1))
    address, port = (await first._work(b"free_address", None, "free_address")).item()
    await proc_mesh.set_environment(elastic_environment(proc_mesh, master_addr or address, master_port or port))


def setup_torch_elastic_env(
    proc_mesh: ProcMesh, master_addr: str | None = None, master_port: int | None = None
) -> None:
    """Set the environment that torchrun sets, on every process; waits until it's done.

    Example:
        >>> procs = this_host().spawn_procs({"gpus": 4})  # doctest: +SKIP
        >>> setup_torch_elastic_env(procs)                # doctest: +SKIP
        >>> procs.execute(dist.init_process_group, "gloo").get()  # doctest: +SKIP
    """
    first = proc_mesh.flatten("rank").slice(rank=slice(0, 1))
    address, port = first._work(b"free_address", None, "free_address").get(30).item()
    environment = elastic_environment(proc_mesh, master_addr or address, master_port or port)
    proc_mesh.set_environment(environment).get(30)


class SPMDActor(Actor):
    """Runs a script or a module on each process as torchrun would.

    Example:
        >>> setup_torch_elastic_env(procs)                            # doctest: +SKIP
        >>> procs.spawn("spmd", SPMDActor).main.call(["train.py", "--lr", "0.1"]).get()  # doctest: +SKIP
    """

    @endpoint
    def main(self, argv: list[str]) -> Any:
        """Run `argv` as `python ARGV` would: a script with its arguments, or `-m MODULE` with them."""
        import runpy
        import sys

        module = argv[0] == "-m"
        target, *rest = argv[1:] if module else argv
        previous, sys.argv = sys.argv, [target, *rest]
        try:
            run = runpy.run_module if module else runpy.run_path
            run(target, run_name="__main__")
        finally:
            sys.argv = previous
