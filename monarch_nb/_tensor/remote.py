"""Calls functions of the user's on ranks, with tensors of the mesh as arguments and results."""

from __future__ import annotations

import functools
import itertools
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.calls import freeze
from monarch_nb._rank.tensor.protocol import Described, Hole
from monarch_nb._tensor.active import active_grid
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.groups import RemoteProcessGroup
from monarch_nb._tensor.metadata import Grid, intern
from monarch_nb._tensor.movement import fetch_shard
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.actor import Future
from monarch_nb.actor.active import get_active_mesh
from monarch_nb.exceptions import MeshUsageError, WrongTensor


def execute(mesh: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function on all ranks of a mesh; see `monarch_nb.distributed.Mesh.execute`."""
    if not callable(function):
        raise WrongTensor(f"execute takes a function and its arguments, not {type(function).__name__}")
    grid = grid_of(mesh)
    made, _ = _called(grid, function, args, kwargs, mesh)
    return _result(grid.engine.fetch(made, "describe"), made, grid)


def _called(
    grid: Grid, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], mesh: Any = None
) -> tuple[Tensor, bytes]:
    """Make the ranks of a grid call a function; return the slot of the whole result, and the function as it
    was sent.

    Args:
        mesh: the mesh that the user has named; None for the active one.
    """
    engine = grid.engine
    engine.called_code.check(function, get_active_mesh() if mesh is None else mesh)
    tensors: list[Tensor] = []

    def hole(value: Any) -> Any:
        if isinstance(value, RemoteProcessGroup):
            return value.hole
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(
            value.detach() if isinstance(value, Tensor) else engine.put(value, grid, grid.replicated)
        )
        given = tensors[-1].mesh_meta.grid
        if given.engine is not engine or not set(grid.ranks) <= set(given.ranks):
            raise WrongTensor(
                "WRONG_MESH: execute on a mesh with a tensor of another one: "
                "monarch_nb.distribute(x.full(), mesh, ...) brings it here"
            )
        engine.check_usable(tensors[-1])
        return Hole(len(tensors) - 1)

    positional, named = pytree.tree_map(hole, (tuple(args), dict(kwargs)))
    unknown = intern((), (), torch.float32, grid, None)
    sent = function.function if isinstance(function, Remote) else function
    call = freeze(sent, positional, named)
    return engine.call(call, tensors, unknown), call[0]


def _result(answers: Sequence[Any], made: Tensor, grid: Grid) -> Any:
    """Return the result of a call, assembled from the ranks' answers."""
    answers = [answers[rank] for rank in grid.ranks]
    leaves, structure = pytree.tree_flatten(answers[0])
    if any(isinstance(leaf, Described) for leaf in leaves):
        _check_alike(answers)
        return _parts(pytree.tree_unflatten(leaves, structure), made, grid)
    try:
        agree = all(bool(answer == answers[0]) for answer in answers)
    except Exception:  # an object of a user's class, which isn't compared
        agree = False
    return answers[0] if agree else list(answers)


def _parts(described: Any, made: Tensor, grid: Grid) -> Any:
    """Return a result with tensors in place of their descriptions."""
    numbers = itertools.count()
    return pytree.tree_map(
        lambda leaf: _part(leaf, made, next(numbers), grid) if isinstance(leaf, Described) else leaf,
        described,
    )


def _check_alike(answers: Sequence[Any]) -> None:
    for rank, answer in enumerate(answers):
        if str(pytree.tree_map(str, answer)) != str(pytree.tree_map(str, answers[0])):
            raise WrongTensor(
                f"the function returned other tensors on rank {rank} ({answer}) than on rank 0 "
                f"({answers[0]}): give them one shape, with torch.where or by padding; or return "
                "numbers"
            )


def _part(described: Described, made: Tensor, number: int, grid: Grid) -> Tensor:
    meta = intern(described.size, described.stride, described.dtype, grid, described.placements)
    found: Tensor = grid.engine.own("own.part", (Hole(0), number), [made], meta)
    return found


class Remote:
    """A function that the ranks of the active mesh call, with tensors of the mesh among its arguments and
    results. `remote` makes it.

    Calling it returns at once; what it returns must be tensors (in lists, tuples and dicts), or nothing.
    """

    def __init__(self, function: Any, propagate: Any = None) -> None:
        self._function = ByPath(function) if isinstance(function, str) else function
        self.__wrapped__ = self._function  # for `inspect`, and for what is recorded: it sees its variables
        self._in_its_place: ByPath | None = None
        self._propagate = propagate
        self._known: dict[Any, Any] = {}
        self._sent = b""
        """The function of which these are known."""
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function on the ranks; return its results as tensors of the mesh."""
        grid = _grid_for(args, kwargs)
        made, sent = _called(grid, self, args, kwargs)
        return _parts(self._described(made, sent, grid, args, kwargs), made, grid)

    rref = __call__

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function on the ranks; return a future of the first rank's result, with plain tensors."""
        return call_on_shard_and_fetch(self, *args, **kwargs)

    @property
    def function(self) -> Any:
        """The function that the ranks call. A module's function that this has taken the place of, as a
        decorator does, is looked up there: pickled by value it would have a module's variables of its own.
        """
        if self._in_its_place is None:
            self._in_its_place = self._path()
        return self._in_its_place or self._function

    def _path(self) -> ByPath | None:
        module, name = (getattr(self._function, each, None) for each in ("__module__", "__qualname__"))
        if not isinstance(module, str) or not isinstance(name, str) or module not in sys.modules:
            return None
        found: Any = sys.modules[module]
        for each in name.split("."):
            found = getattr(found, each, None)
        return ByPath(f"{module}:{name}") if found is self and module != "__main__" else None

    def _described(self, made: Tensor, sent: bytes, grid: Grid, args: Any, kwargs: Any) -> Any:
        """Return a description of the result; it's known of the same function, with the same variables."""
        if callable(self._propagate):
            return self._by_fakes(args, kwargs)
        key = None if self._propagate == "inspect" else _key(grid, args, kwargs)
        if key is None:
            return self._asked(made, grid)
        if self._sent != sent:
            self._sent = sent
            self._known.clear()
        if key not in self._known:
            self._known[key] = self._asked(made, grid)
        return self._known[key]

    def _asked(self, made: Tensor, grid: Grid) -> Any:
        answers = grid.engine.fetch(made, "describe")
        answers = [answers[rank] for rank in grid.ranks]
        leaves = pytree.tree_leaves(answers[0])
        if not all(isinstance(leaf, Described) or leaf is None for leaf in leaves):
            raise WrongTensor(
                f"a remote function returns tensors or nothing; {_name(self._function)} returned "
                f"{answers[0]!r}. monarch_nb.call_on_shard_and_fetch(f, ...).get() brings other values"
            )
        _check_alike(answers)
        return answers[0]

    def _by_fakes(self, args: Any, kwargs: Any) -> Any:
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(x.is_global for x in given):
            raise WrongTensor(
                "propagate=function is for values that each rank has of its own; with one tensor over the "
                'mesh leave it out, or use propagate="cached"'
            )
        with self._fake:
            result = self._propagate(*pytree.tree_map(_fake, args), **pytree.tree_map(_fake, kwargs))
        return pytree.tree_map(_described, result)


def remote(function: Any = None, *, propagate: Any = None) -> Any:
    """Make a function remote: calling it runs it on the ranks, with tensors of the mesh as arguments and
    results. Can be used as a decorator.

    Args:
        function: the function, or its import path: "package.module.name".
        propagate: how the shapes of results are determined. A function is called in this process, with fake
            tensors; "cached" or None: the ranks report the shapes, once for each combination of argument
            metadata, as long as the variables that the function reads are the same; "inspect": they report
            them at each call.

    Returns:
        a `Remote`: calling it returns the ranks' results, without waiting if their shapes are known. It
        runs on the active mesh, or on that of its arguments.

    Example:
        >>> @monarch_nb.remote(propagate=lambda x: x.clone())  # doctest: +SKIP
        ... def scaled(x):
        ...     return x * torch.distributed.get_rank()
    """
    if function is None:
        return functools.partial(remote, propagate=propagate)
    if not callable(function) and not (isinstance(function, str) and "." in function):
        raise MeshUsageError(
            f"remote takes a function or where it is, as in 'package.module.name'; not {function!r}"
        )
    if propagate == "mocked":
        raise NotImplementedError("propagate='mocked': give a function of the shapes instead")
    if not callable(propagate) and propagate not in (None, "cached", "inspect"):
        raise MeshUsageError(f"propagate is a function, 'cached' or 'inspect'; not {propagate!r}")
    return Remote(function, propagate)


def call_on_shard_and_fetch(
    remote: Any, *args: Any, shard: Mapping[str, int] | None = None, **kwargs: Any
) -> Future[Any]:
    """Call a function on the ranks; return a future of one rank's result, with plain tensors.

    Args:
        remote: a result of `remote`, or any function.
        shard: the rank's coordinates by axis of the mesh; 0 for axes that aren't given.
    """
    grid = _grid_for(args, kwargs)
    made, _ = _called(grid, remote, args, kwargs)
    return fetch_shard(made, shard)


class ByPath:
    """A function that ranks look up by its module and name.

    Args:
        path: path as in `package.module.name`. A `Remote` there stands for its function.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Import the function, and call it."""
        found = pkgutil.resolve_name(self._path)
        return (found._function if isinstance(found, Remote) else found)(*args, **kwargs)

    def __repr__(self) -> str:
        return self._path


def _grid_for(args: Any, kwargs: Any) -> Grid:
    """Return the grid on which a function is called: that of the active mesh, or of its arguments."""
    if get_active_mesh() is not None:
        return active_grid()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor):
            return leaf.mesh_meta.grid.free
    return active_grid()


def _key(grid: Grid, args: Any, kwargs: Any) -> Any:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    key = [(leaf.mesh_meta if isinstance(leaf, Tensor) else leaf, type(leaf)) for leaf in leaves]
    plain = any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, Tensor) for leaf in leaves)
    try:
        hash(tuple(key))
    except TypeError:
        return None
    return None if plain else (grid, tuple(key), structure)


def _fake(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    meta = value.mesh_meta
    return torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype)


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return Described(tuple(value.shape), tuple(value.stride()), value.dtype)


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))
