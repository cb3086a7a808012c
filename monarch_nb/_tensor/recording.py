"""Sends many commands in one message: those of a block, or those of a function that was recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from monarch_nb._tensor.compiled import Compiled
from monarch_nb._tensor.engines import grid_of, live_engines
from monarch_nb.actor.active import get_active_mesh
from monarch_nb.exceptions import WrongTensor


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


def compile(fn: Callable[..., Any] | None = None, *, verify: bool = True) -> Any:  # noqa: A001 - Monarch's name
    """Return a function whose operations on tensors of a mesh are recorded in its first calls, and replayed
    in later ones: a whole training step, with its backward and its optimiser, is then one message of some
    hundred bytes. Can be used as a decorator.

    A replay doesn't run the function's Python, but for steps of optimisers that count their steps in this
    process, or whose settings change. Its results, gradients and parameters are those of an ordinary call,
    also random numbers, of which each replay draws new ones. Arguments that aren't tensors, shapes and
    layouts of tensors, and values outside of the function that it refers to are compared at each call: for
    others it's recorded anew.

    A value of the mesh may be read in it. If it's only returned, as in `return loss.item()`, the replay reads
    it, too. Else it may decide what the function does: for each value that was read, such as the outcomes of
    `if norm > 1:`, what comes next is recorded, and with another value the replay is given up, and the
    function called. That is possible only as long as nothing was changed but gradients; and numbers that are
    others in each call aren't worth it. Such functions are run as without `compile`, and a warning says why.

    Args:
        fn: takes and returns tensors, numbers and strings, also in lists, tuples and dicts.
        verify: whether the function is recorded twice before it's replayed, to compare both.

    Returns:
        a `Compiled`, to be called like the function.

    Raises:
        MeshUsageError: from a call: if the function needs plain tensors that it computes in this process, or
            shapes that depend on values, or sends tensors elsewhere; if its second recording differs from the
            first. The error names the line.

    Example:
        >>> @monarch_nb.compile                              # doctest: +SKIP
        ... def step(inputs, targets):
        ...     optimizer.zero_grad()
        ...     loss = criterion(model(inputs), targets)
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss.detach()
    """
    if fn is None:
        return functools.partial(compile, verify=verify)
    if not callable(fn):
        raise WrongTensor(f"compile takes a function, not {type(fn).__name__}")
    return Compiled(fn, verify=verify)
