"""Keeps the engine of each mesh, which is created with the mesh's first tensor, and dropped with the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch_nb._tensor.controller import Engine
from monarch_nb._tensor.metadata import Grid
from monarch_nb.actor import ProcMesh
from monarch_nb.actor.handle import placement_of, transport_of, whole_of
from monarch_nb.actor.proc_mesh import why_stopped
from monarch_nb.exceptions import MeshUsageError, SupervisionError

_engines: dict[tuple[int, str, tuple[int, ...]], Engine] = {}


def engine_of(procs: ProcMesh) -> Engine:
    """Return the engine of processes.

    Raises:
        SupervisionError: if they are dead.
    """
    key = _key(procs)
    found = _engines.get(key)
    if found is None or found.is_closed:
        found = _engines[key] = Engine(whole_of(procs), grid_of)
    return found


def live_engines() -> list[Engine]:
    """Return the engines of this program."""
    return [engine for engine in _engines.values() if not engine.is_closed]


def ranks_of(procs: ProcMesh) -> tuple[int, ...]:
    """Return the ranks of processes in their engine."""
    placement = placement_of(procs)
    return tuple(map(_key(procs)[2].index, placement.procs))


def grid_of(mesh: Any) -> Grid:
    """Return the grid of a mesh: of `monarch_nb.distributed.Mesh`, a named mesh or processes.

    Raises:
        MeshUsageError: for anything else.
        SupervisionError: if it's dead.
    """
    if isinstance(mesh, Grid):
        return mesh
    found = getattr(mesh, "tensor_grid", None)
    if callable(found):
        grid: Grid = found()
        return grid
    if isinstance(mesh, ProcMesh):
        names, sizes = _axes(mesh.sizes)
        return engine_of(mesh).grid(sizes, names, ranks_of(mesh))
    raise MeshUsageError(
        f"expected a mesh, not {type(mesh).__name__}: monarch_nb.distributed.Mesh(shape=(2,), "
        "mesh_dim_names=('data_parallel',)), or one of `%mesh start`"
    )


def _axes(sizes: Any) -> tuple[Sequence[str], Sequence[int]]:
    named = dict(sizes) or {"ranks": 1}
    return tuple(named), tuple(named.values())


def check_alive(procs: ProcMesh, what: str) -> None:
    """Raise if processes have been stopped."""
    reason = why_stopped(procs)
    if reason:
        raise SupervisionError(
            f"{what}: the mesh is dead: {reason}. Start another: monarch_nb.distributed.Mesh(...)"
        )


def close_engine(procs: ProcMesh) -> None:
    """End the engine of processes, if they have one."""
    found = _engines.pop(_key(procs), None)
    if found is not None:
        found.close()


def _key(procs: ProcMesh) -> tuple[int, str, tuple[int, ...]]:
    placement = placement_of(procs)
    members = placement.procs if placement.is_whole else placement.all_procs
    return id(transport_of(procs)), procs.name, members
