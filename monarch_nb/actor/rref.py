"""Results that stay on their ranks, as handles."""

from __future__ import annotations

import secrets
from typing import Any

from monarch_nb._runtime import kept
from monarch_nb._shape import Shape
from monarch_nb._transport import process_context
from monarch_nb._wire.mesh_address import MeshAddress


class RRef:
    """A value on each rank of a mesh. As an argument of an endpoint on those ranks, it becomes the rank's
    own value.
    """

    def __init__(self, key: int, procs: tuple[int, ...], shape: Shape, mesh: MeshAddress | None) -> None:
        self.key = key
        self.procs = procs
        self.shape = shape
        self.mesh = mesh

    @classmethod
    def new(cls, procs: tuple[int, ...], shape: Shape, mesh: MeshAddress | None) -> RRef:
        """Return a handle for results that are still being computed."""
        return cls(secrets.randbits(63) | 1, procs, shape, mesh)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.key, self.procs, self.shape, self.mesh)

    def __repr__(self) -> str:
        return f"<RRef on {self.shape.extent}>"


def _arrive(key: int, procs: tuple[int, ...], shape: Shape, mesh: MeshAddress | None) -> Any:
    """Return the kept value itself, on a rank that has it."""
    if not process_context.is_own_mesh(mesh) or process_context.transport().me not in procs:
        return RRef(key, procs, shape, mesh)
    return kept.find(key)
