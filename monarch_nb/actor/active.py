"""The mesh in use: what `with mesh.activate():` sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_active: ContextVar[Any] = ContextVar("monarch_nb_active_mesh", default=None)


@contextmanager
def activate(mesh: Any) -> Iterator[Any]:
    """Make `mesh` the current one within a block."""
    token = _active.set(mesh)
    try:
        yield mesh
    finally:
        _active.reset(token)


def get_active_mesh() -> Any:
    """Return the mesh in use, or None."""
    return _active.get()
