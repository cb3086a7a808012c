"""A client and views with ipyparallel's interface, on a mesh: existing code keeps working, and can be
converted to calls of the mesh one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from monarch_nb import mesh as meshes
from monarch_nb.exceptions import MeshUsageError


def _found(name: str | None) -> meshes.Mesh:
    return (name is None and meshes.current()) or meshes.attach(name or None)


class Applied:
    """The pending result of a call on several ranks: `get()` waits for it.

    Args:
        future: the call's future; its value has one value per rank.
    """

    def __init__(self, future: Any) -> None:
        self._future = future

    def get(self, timeout: float | None = None) -> list[Any]:
        """Return the results of the ranks, in order.

        Raises:
            ActorError: if it has raised on any.
            TimeoutError: if it takes longer than `timeout` seconds.
        """
        return list(self._future.get(timeout).values())

    def ready(self) -> bool:
        """Return whether `get` would return at once."""
        return bool(self._future.done())


class View:
    """A view of some ranks of a mesh, with the methods of ipyparallel's `DirectView`.

    Args:
        mesh: the mesh.
        targets: its ranks, in order.
    """

    def __init__(self, mesh: meshes.Mesh, targets: Sequence[int]) -> None:
        if not targets:
            raise MeshUsageError(f"a view has at least one rank; mesh {mesh.name!r} has {len(mesh)}")
        self.mesh = mesh
        self.targets = list(targets)

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return f"<View of ranks {', '.join(map(str, self.targets))} of mesh {self.mesh.name!r}>"

    def apply_async(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Applied:
        """Call a function on each rank."""
        return Applied(self.mesh.part(self.targets).execute(function, *args, **kwargs))

    apply = apply_async

    def apply_sync(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on each rank; return the results in rank order."""
        return self.apply_async(function, *args, **kwargs).get()

    def map_async(self, function: Callable[..., Any], *items: Iterable[Any]) -> Any:
        """Call a function for each item, on whichever rank is free; `get()` of the result waits for it."""
        if len(items) == 1:
            return self.mesh.map(function, items[0], ranks=self.targets, progress=False)
        return self.mesh.map(
            _Starred(function), zip(*items, strict=False), ranks=self.targets, progress=False
        )

    map = map_async

    def map_sync(self, function: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        """Call a function for each item; return the results in order."""
        return list(self.map_async(function, *items).get())

    def execute(self, source: str) -> None:
        """Run code on each rank."""
        self.mesh.run(source, self.targets)

    def push(self, variables: Mapping[str, Any]) -> None:
        """Set variables on each rank."""
        self.mesh.push(variables, self.targets)

    def pull(self, names: str | Sequence[str]) -> list[Any]:
        """Return the values of a variable on each rank; for several names, a list of values for each rank."""
        wanted = (names,) if isinstance(names, str) else tuple(names)
        found = self.mesh.pull(*wanted, ranks=self.targets).values()
        return list(found) if isinstance(names, str) else [[each[name] for name in wanted] for each in found]

    def scatter(self, name: str, value: Any) -> None:
        """Split a value into parts, and assign one to a variable of each rank."""
        self.mesh.scatter(name, value, self.targets)

    def gather(self, name: str) -> list[Any]:
        """Return the parts of a variable on all ranks, joined into one list."""
        return [item for part in self.pull(name) for item in part]

    def __getitem__(self, name: str) -> list[Any]:
        return self.pull(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.push({name: value})


class _Starred:
    """A function of several arguments, adapted to take one tuple."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        return self._function(*arguments)


class Client:
    """A client with the interface of ipyparallel's `Client`, whose engines are the ranks of a mesh.

    Args:
        mesh: the mesh, or its name; by default the one that is in use here, or the only one that runs.

    Example:
        >>> rc = Client("study")                             # doctest: +SKIP
        >>> rc[::2].push({"lr": 0.1})                        # doctest: +SKIP
        >>> rc.load_balanced_view().map_sync(work, items)    # doctest: +SKIP
    """

    def __init__(self, mesh: meshes.Mesh | str | None = None) -> None:
        self.mesh = mesh if isinstance(mesh, meshes.Mesh) else _found(mesh)

    @property
    def ids(self) -> list[int]:
        """The ranks."""
        return list(range(len(self.mesh)))

    def __len__(self) -> int:
        return len(self.mesh)

    def __getitem__(self, key: int | slice | Sequence[int]) -> View:
        if isinstance(key, slice):
            return View(self.mesh, self.ids[key])
        wanted = [key] if isinstance(key, int) else list(key)
        missing = [each for each in wanted if not -len(self) <= each < len(self)]
        if missing:
            raise IndexError(f"mesh {self.mesh.name!r} has ranks 0-{len(self) - 1}; not {missing[0]}")
        return View(self.mesh, [self.ids[each] for each in wanted])

    def direct_view(self) -> View:
        """Return a view of all ranks."""
        return self[:]

    def load_balanced_view(self) -> View:
        """Return a view of all ranks; `map` of any view uses whichever rank is free."""
        return self[:]
