"""The mesh in use: what `with mesh.activate():` sets.

Until tensors of the mesh are there, whoever makes a tensor in such a block gets an error: a local one would
be another thing than what was meant.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

_active: ContextVar[Any] = ContextVar("monarch_nb_active_mesh", default=None)


@contextmanager
def activate(mesh: Any) -> Iterator[Any]:
    """Make `mesh` the current one within a block."""
    token = _active.set(mesh)
    try:
        with _no_local_tensors():
            yield mesh
    finally:
        _active.reset(token)


def get_active_mesh() -> Any:
    """Return the mesh in use, or None."""
    return _active.get()


def _no_local_tensors() -> AbstractContextManager[Any]:
    if importlib.util.find_spec("torch") is None:
        return nullcontext()
    from monarch_nb.actor.local_tensors import NoLocalTensors

    return NoLocalTensors()
