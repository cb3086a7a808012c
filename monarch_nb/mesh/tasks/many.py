"""Many small tasks on the ranks of a mesh."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_nb.actor.checked import checks_arguments
from monarch_nb.actor.proc_mesh import check_alive
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.tasks.executor import MeshExecutor
from monarch_nb.mesh.tasks.mapping import MapRun

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

R = TypeVar("R")


@checks_arguments("function")
class Tasks:
    """Give tasks to whichever rank of a mesh is free: `mesh.map(...)` is `mesh.tasks.map(...)`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def map(
        self,
        function: Callable[..., R],
        items: Iterable[Any],
        *,
        ranks: str | Sequence[int] = "all",
        ordered: bool = True,
        retries: int = 2,
        return_exceptions: bool = False,
        progress: bool = True,
    ) -> MapRun[R]:
        """Call `function` for each item, on whichever rank is free. Starts at once, and returns without
        waiting.

        Args:
            items: any iterable; items of a generator are taken in another thread, as ranks become free.
            ordered: whether results come in the order of the items; otherwise as they complete.
            retries: how often an item is sent to another rank after a rank has died while processing it.
            return_exceptions: whether an item's error is returned in place of its result; otherwise it's
                raised, and the rest is cancelled.
            progress: whether a notebook shows a progress bar, if the map takes more than two seconds.

        Raises:
            MeshUsageError: if `function` can't be called, or `items` can't be iterated.
            CannotPickle: (a TypeError) if the function can't be sent. For items that can't be sent, the
                returned `MapRun` raises the error.

        Example:
            >>> mesh.map(lambda x: x * x, range(4)).get()            # doctest: +SKIP
            [0, 1, 4, 9]
        """
        check_alive(self._mesh, "map")
        _check(function, items)
        return MapRun(
            self._mesh, function, items, self._mesh.select(ranks),
            ordered=ordered, retries=retries, return_exceptions=return_exceptions, progress=progress,
        )  # fmt: skip

    def executor(self, ranks: str | Sequence[int] = "all", *, retries: int = 2) -> MeshExecutor:
        """Return a `concurrent.futures.Executor` whose workers are ranks.

        Example:
            >>> with mesh.executor() as pool:                         # doctest: +SKIP
            ...     futures = [pool.submit(evaluate, path) for path in paths]
        """
        check_alive(self._mesh, "executor")
        return MeshExecutor(self._mesh, self._mesh.select(ranks), retries=retries)


def _check(function: object, items: object) -> None:
    usage = "as in mesh.map(f, range(100))"
    if not callable(function):
        raise MeshUsageError(f"mesh.map takes a function first, not {_quoted(function)}: {usage}")
    # Not by `iter`: a DataLoader would start its workers.
    if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
        raise MeshUsageError(f"mesh.map takes items that can be iterated, not {_quoted(items)}: {usage}")


def _quoted(value: object) -> str:
    """Return the description of an argument in an error: its type, and for a number or text its value."""
    kind = f"of type {type(value).__name__}"
    return f"{reprlib.repr(value)}, {kind}" if isinstance(value, int | float | str) else f"one {kind}"
