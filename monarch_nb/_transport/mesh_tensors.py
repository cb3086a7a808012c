"""The interface through which handles on meshes use tensors of the mesh, which belong to a higher room.
`monarch_nb/__init__` sets the implementation, which is loaded, with torch, when it's first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class MeshTensors(Protocol):
    """The interface to tensors of a mesh that handles need."""

    def makes_tensors(self) -> AbstractContextManager[Any]:
        """Let torch's functions make tensors of the active mesh within a block."""

    def rank_tensor(self, mesh: Any, dim: str, /) -> Any:
        """Return the ranks' places along an axis."""

    def rank_tensors(self, mesh: Any, /) -> Any:
        """Return the ranks' places along all axes, by name."""

    def process_group(self, mesh: Any, dims: Sequence[str] | str, /) -> Any:
        """Return the process groups along axes."""


_load: Callable[[], MeshTensors] | None = None


def provide(load: Callable[[], MeshTensors]) -> None:
    """Set the function that loads the implementation."""
    global _load
    _load = load


def mesh_tensors() -> MeshTensors:
    """Return the service for tensors of a mesh; loads it the first time."""
    assert _load is not None, "monarch_nb/__init__ puts it in place"
    return _load()
