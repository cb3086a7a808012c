"""Verbs about variables: push, pull, scatter, vars, diff."""

from __future__ import annotations

from typing import Any

from monarch_nb.exceptions import MeshUsageError
from monarch_nb.magics.arguments import Namespace
from monarch_nb.magics.state import State


def push(state: State, arguments: Namespace) -> None:
    """Copy variables of this notebook to the ranks."""
    names = state.shell.user_ns
    missing = [n for n in arguments.names if n not in names]
    if missing:
        raise MeshUsageError(f"%mesh push: no variable {', '.join(missing)} in this notebook")
    state.mesh(arguments.name).push({n: names[n] for n in arguments.names}, arguments.ranks)


def pull(state: State, arguments: Namespace) -> Any:
    """Bring variables of the ranks here, each as a ValueMesh under its name; a single one is also shown."""
    mesh = state.mesh(arguments.name)
    for name in arguments.names:
        state.shell.user_ns[name] = mesh.pull(name, ranks=arguments.ranks)
    return state.shell.user_ns[arguments.names[0]] if len(arguments.names) == 1 else None


def scatter(state: State, arguments: Namespace) -> None:
    """Split a variable of this notebook along a dimension: each rank gets its part under the same name."""
    names = state.shell.user_ns
    if arguments.variable not in names:
        raise MeshUsageError(f"%mesh scatter: no variable {arguments.variable} in this notebook")
    value = names[arguments.variable]
    mesh = state.mesh(arguments.name)
    ranks = mesh.select(arguments.ranks)
    try:
        parts = split_evenly(value, len(ranks), arguments.dim)
    except (TypeError, IndexError) as error:
        raise MeshUsageError(
            f"%mesh scatter: {arguments.variable} is a {type(value).__name__}, which can't be split along dimension "
            f"{arguments.dim} ({error}); a tensor, an array or a list can"
        ) from None
    for rank, part in zip(ranks, parts, strict=True):
        mesh.push({arguments.variable: part}, [rank])


def split_evenly(value: Any, num: int, dim: int = 0) -> list[Any]:
    """Return `num` parts of a tensor, array or list, whose sizes differ by one at most.

    >>> split_evenly([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    if hasattr(value, "tensor_split"):
        return [part.contiguous() for part in value.tensor_split(num, dim)]
    if hasattr(value, "__array__"):
        import numpy

        return list(numpy.array_split(value, num, axis=dim))
    size, rest = divmod(len(value), num)
    bounds = [i * size + min(i, rest) for i in range(num + 1)]
    return [value[bounds[i] : bounds[i + 1]] for i in range(num)]


def vars_(state: State, arguments: Namespace) -> Any:
    """Show what each rank holds: type, shape, dtype, device, norm. What differs between ranks is marked."""
    found = state.mesh(arguments.name).vars(arguments.ranks, arguments.names)
    missing = [n for n in arguments.names if n not in found.names()]
    if missing:
        raise MeshUsageError(f"%mesh vars: no rank has a variable {', '.join(missing)}")
    return found


def diff(state: State, arguments: Namespace) -> Any:
    """Show where ranks disagree on a variable: the first differing element, the largest difference. --env: on what they run with."""
    mesh = state.mesh(arguments.name)
    if arguments.env:
        if arguments.variable is not None:
            raise MeshUsageError(f"%mesh diff takes a variable or --env, not both: {arguments.variable}")
        return mesh.diff_env(arguments.ranks, shows_all=arguments.all)
    if arguments.variable is None:
        raise MeshUsageError("%mesh diff needs a variable, as in %mesh diff model; or --env for versions, variables and settings")
    return mesh.diff(arguments.variable, arguments.ranks)
