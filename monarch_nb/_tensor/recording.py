"""Sends many commands in one message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from monarch_nb._tensor.engines import grid_of, live_engines
from monarch_nb.actor.active import get_active_mesh


@contextmanager
def coalescing() -> Iterator[None]:
    """Send all operations on tensors within the block as one message, at its end. This applies to the active
    mesh, or to all meshes if none is active. To wait for a value within the block sends the operations before
    it.

    Example:
        >>> with monarch_nb.coalescing():                    # doctest: +SKIP
        ...     for each in parameters:
        ...         each.mul_(0.9)
    """
    mesh = get_active_mesh()
    engines = live_engines() if mesh is None else [grid_of(mesh).engine]
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(engine.stream.hold())
        yield
