"""The function that a recovery loop calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from monarch_nb.actor.proc_mesh import ProcMesh

M = TypeVar("M", bound="ProcMesh")


def heal_mesh(mesh: M) -> M:
    """Put back what a mesh has lost (see `ProcMesh.heal`); return it.

    Example:
        >>> try:                                         # doctest: +SKIP
        ...     loss = train_step(mesh)
        ... except DeviceMeshError:
        ...     mesh = heal_mesh(mesh)
    """
    mesh.heal()
    return mesh
