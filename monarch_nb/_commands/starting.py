"""Starts a mesh, given the typed command line, in a notebook or a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from monarch_nb import mesh as meshes
from monarch_nb._commands import clusters
from monarch_nb._commands.parser import Namespace
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import StartMethod
from monarch_nb._shape import name_ranks
from monarch_nb._units import duration
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.job.allocation import Plan, read_record
from monarch_nb.mesh import inside, on_engine, starting
from monarch_nb.mesh.running import Asked

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

GROUP_TIMEOUT_S = 600.0


def start_mesh(arguments: Namespace) -> Mesh:
    """Start a mesh and wait until its ranks are up: inside a job of several nodes, on these.

    Raises:
        MeshUsageError: if the arguments contradict each other.
    """
    _take_own_allocation(arguments)
    if arguments.on is not None:
        return clusters.start_on(arguments, plan_of(arguments))
    return meshes.start(arguments.name, force=arguments.force, **asdict(asked_for(arguments)))


def plan_of(arguments: Namespace) -> Plan:
    """Return the plan of a mesh on hosts of an engine: sizes, environment, start method, policy.

    Raises:
        MeshUsageError: if the arguments contradict each other.
    """
    dims = read_dims(arguments)
    if dims and "hosts" in dims:
        raise MeshUsageError(
            f"start: with --on, the number of hosts is said by itself: --hosts {dims['hosts']}"
        )
    return Plan(
        None if dims is None else tuple(dims.items()),
        tuple(arguments.env or ()),
        StartMethod.SPAWN if arguments.spawn else StartMethod.FORK,
        arguments.on_failure or "",
        num_spares=arguments.spares or 0,
        idle_timeout_s=_lease(arguments),
    )


def asked_for(arguments: Namespace) -> Asked:
    """Return the request for a mesh that the typed arguments describe.

    Raises:
        MeshUsageError: if the arguments contradict each other.
    """
    dims, num_hosts = read_sizes(arguments)
    return Asked(
        dims,
        num_hosts,
        env=dict(arguments.env or ()),
        idle_timeout_s=arguments.idle_timeout,
        method=StartMethod.SPAWN if arguments.spawn else StartMethod.FORK,
        on_failure=arguments.on_failure,
        num_spares=arguments.spares or 0,
        with_program=arguments.with_kernel,
    )


def start_or_attach(arguments: Namespace, attach: Callable[[str], Mesh]) -> tuple[Mesh, bool]:
    """Start a mesh, unless one of that name runs; say whether it's new. Wait for a mesh that another program
    is starting.

    Args:
        attach: connects to a mesh that runs.
    """
    _take_own_allocation(arguments)
    if is_requested(arguments.name):
        return clusters.wait_on(arguments), True
    return starting.start_or_attach(
        arguments.name,
        attach=lambda: attach(arguments.name),
        start=lambda: start_mesh(arguments),
        on_wait=lambda text: print(f"{text}; waiting for that", flush=True),
    )


def is_requested(name: str) -> bool:
    """Return whether a mesh of that name waits for hosts that were requested before, or runs inside a job and
    isn't connected here.
    """
    return on_engine.waits(name) or inside.is_away(name)


def _take_own_allocation(arguments: Namespace) -> None:
    if arguments.on is None and arguments.job is None and arguments.hosts is None:
        arguments.on = clusters.own_allocation()


def set_up(mesh: Mesh, arguments: Namespace) -> str:
    """Prepare a new mesh for torch.distributed; return messages about it."""
    backend = prepare_distributed(mesh, arguments.init_process_group, arguments.group_timeout)
    ready = f"; torch.distributed is ready ({backend})" if backend else ""
    return f"{describe(mesh)} is ready{ready}; it ends {_when_it_ends(arguments)}"


def _when_it_ends(arguments: Namespace) -> str:
    """Return when a new mesh will end, and the reason."""
    asked = arguments.with_kernel
    if not starting.ends_with_program(asked):
        return f"after {duration(_lease(arguments))} without a client and a running cell"
    why = (
        ""
        if asked
        else ", because a program runs this notebook (nbclient, papermill, nbconvert): --keep lets it go on"
    )
    return f"with this kernel{why}"


def _lease(arguments: Namespace) -> float:
    return starting.IDLE_TIMEOUT_S if arguments.idle_timeout is None else float(arguments.idle_timeout)


def read_sizes(arguments: Namespace) -> tuple[dict[str, int] | None, int]:
    """Return the requested dimensions on each host, if any, and the number of hosts, 0 for this machine.

    Raises:
        MeshUsageError: if the arguments contradict each other.
    """
    dims = read_dims(arguments)
    hosts = clusters.num_hosts_here(arguments)
    if dims and "hosts" in dims:
        hosts = dims.pop("hosts")
    job = arguments.job or ("process" if hosts else "local")
    if job == "local" and hosts > 1:
        raise MeshUsageError(
            "start: --job local is a single host; use --job process for several on this machine"
        )
    return dims, hosts if job == "process" else 0


def read_dims(arguments: Namespace) -> dict[str, int] | None:
    """Return the requested dimensions, if any.

    Raises:
        MeshUsageError: if the arguments contradict each other.
    """
    if arguments.group_timeout is not None and arguments.init_process_group is None:
        raise MeshUsageError(
            "start: --group-timeout says how long a collective of --init-process-group may take; "
            "give that, too"
        )
    given = [k for k in ("gpus", "procs", "dims") if getattr(arguments, k) is not None]
    if len(given) > 1:
        raise MeshUsageError(
            f"start: give one of --gpus, --procs, --dims; not {' and '.join('--' + g for g in given)}"
        )
    dims: dict[str, int] | None = None
    if arguments.dims is not None:
        dims = dict(arguments.dims)
    elif given:
        dims = {given[0]: getattr(arguments, given[0])}
    return dims


def describe(mesh: Mesh) -> str:
    """Return a short description of a mesh."""
    return f"mesh {mesh.name!r} ({mesh.extent}: {name_ranks(range(len(mesh)))})"


def prepare_distributed(mesh: Mesh, backend: str | None, timeout_s: float | None) -> str:
    """Set RANK, MASTER_ADDR and the like; create a process group if requested."""
    from monarch_nb.spmd import setup_torch_elastic_env
    from monarch_nb.spmd.environment import host_and_port

    address, port = mesh.part([0]).execute(host_and_port, None).get(30).item()
    is_here = read_record(mesh.name) is None  # all hosts of such a mesh are this machine
    setup_torch_elastic_env(mesh, "127.0.0.1" if is_here else address, port)
    if backend is None:
        return ""
    chosen = backend or ("nccl" if "gpus" in mesh.sizes and _has_gpus(mesh) else "gloo")
    mesh.execute(_init_process_group, chosen, GROUP_TIMEOUT_S if timeout_s is None else timeout_s).get(120)
    return chosen


def _has_gpus(mesh: Mesh) -> bool:
    return all(h.num_gpus for h in session_of(mesh).request(Status()).hosts)


def _init_process_group(backend: str, timeout_s: float) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    if backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
