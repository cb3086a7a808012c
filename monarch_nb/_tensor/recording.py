"""Sends many commands in one message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from monarch_nb._tensor.engines import grid_of, live_engines
from monarch_nb.actor.active import get_active_mesh


@contextmanager
def coalescing() -> Iterator[None]:
    """Send all operations on tensors in a `with` block as one message, at its end: of the active mesh, or of
    all. A value that is waited for in it sends those before it.

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
