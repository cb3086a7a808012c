"""The function that a recovery loop calls."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar


class Heals(Protocol):
    """The interface of meshes that can be healed."""

    def heal(self) -> Any:
        """Repair the losses of the mesh."""


M = TypeVar("M", bound=Heals)


def heal_mesh(mesh: M) -> M:
    """Repair the losses of a mesh (see `ProcMesh.heal`); return the mesh.

    Example:
        >>> try:                                         # doctest: +SKIP
        ...     loss = train_step(mesh)
        ... except DeviceMeshError:
        ...     mesh = heal_mesh(mesh)
    """
    mesh.heal()
    return mesh
