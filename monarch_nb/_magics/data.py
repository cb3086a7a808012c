"""Verbs about variables: push, pull, scatter, vars, diff."""

from __future__ import annotations

import sys
from typing import Any

from monarch_nb._commands import actions
from monarch_nb._commands.parser import Namespace
from monarch_nb._magics.state import State
from monarch_nb.exceptions import MeshUsageError


def push(state: State, arguments: Namespace) -> None:
    """Copy variables of this notebook to the ranks."""
    names = state.shell.user_ns
    missing = [n for n in arguments.names if n not in names]
    if missing:
        raise MeshUsageError(f"%mesh push: no variable {', '.join(missing)} in this notebook")
    state.mesh(arguments.name).push({n: names[n] for n in arguments.names}, arguments.ranks)


def pull(state: State, arguments: Namespace) -> Any:
    """Copy variables of the ranks to this notebook."""
    mesh = state.mesh(arguments.name)
    for name in arguments.names:
        state.shell.user_ns[name] = mesh.pull(name, ranks=arguments.ranks)
    return state.shell.user_ns[arguments.names[0]] if len(arguments.names) == 1 else None


def scatter(state: State, arguments: Namespace) -> None:
    """Split a variable of this notebook along a dimension."""
    names = state.shell.user_ns
    if arguments.variable not in names:
        raise MeshUsageError(f"%mesh scatter: no variable {arguments.variable} in this notebook")
    value = names[arguments.variable]
    state.mesh(arguments.name).scatter(arguments.variable, value, arguments.ranks, dim=arguments.dim)


def vars_(state: State, arguments: Namespace) -> Any:
    """Show the variables of each rank."""
    found = state.mesh(arguments.name).vars(arguments.ranks, arguments.names)
    missing = [n for n in arguments.names if n not in found.names()]
    if missing:
        raise MeshUsageError(f"%mesh vars: no rank has a variable {', '.join(missing)}")
    if not arguments.names and "monarch_nb._tensor.engines" in sys.modules:
        _tell_of_tensors()
    return found


def _tell_of_tensors() -> None:
    """Print the memory that tensors of the mesh take on the ranks, if there are any."""
    from monarch_nb._tensor.live import biggest

    text = biggest()
    if text:
        print(text)


def diff(state: State, arguments: Namespace) -> Any:
    """Show differences of a variable between ranks; with --env, of their environments."""
    mesh = state.mesh(arguments.name)
    if arguments.env:
        if arguments.variable is not None:
            raise MeshUsageError(f"%mesh diff takes a variable or --env, not both: {arguments.variable}")
        return actions.diff_env(mesh, arguments)
    if arguments.hosts:
        raise MeshUsageError("%mesh diff --hosts compares packages: %mesh diff --env --hosts")
    if arguments.variable is None:
        raise MeshUsageError(
            "%mesh diff needs a variable, as in %mesh diff model; or --env for versions, variables "
            "and settings"
        )
    return mesh.diff(arguments.variable, arguments.ranks)
