"""The active mesh, which `with mesh.activate():` sets.

What it does to torch's functions is a matter of tensors of the mesh, which lie above this.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from monarch_nb._transport.mesh_tensors import mesh_tensors

_active: ContextVar[Any] = ContextVar("monarch_nb_active_mesh", default=None)


@contextmanager
def activate(mesh: Any) -> Iterator[Any]:
    """Make `mesh` the current one within a block."""
    token = _active.set(mesh)
    try:
        with _makes_tensors():
            yield mesh
    finally:
        _active.reset(token)


def get_active_mesh() -> Any:
    """Return the mesh in use, or None."""
    return _active.get()


class NoMesh:
    """The mesh-like object of this process: within `with no_mesh.activate():` no mesh is active."""

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Let tensors be plain ones within a block, also in one where a mesh is active."""
        token = _active.set(None)
        try:
            yield
        finally:
            _active.reset(token)


no_mesh = NoMesh()


def _makes_tensors() -> AbstractContextManager[Any]:
    if importlib.util.find_spec("torch") is None:
        return nullcontext()
    return mesh_tensors().makes_tensors()
