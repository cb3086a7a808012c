"""Functions of the user's on ranks, with tensors of the mesh as arguments and results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._rank.tensor.protocol import Described, Hole
from monarch_nb.exceptions import WrongTensor
from monarch_nb.tensor.engines import grid_of
from monarch_nb.tensor.metadata import Grid, intern
from monarch_nb.tensor.tensor import Tensor


def execute(mesh: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function on all ranks of a mesh; see `monarch_nb.distributed.Mesh.execute`."""
    if not callable(function):
        raise WrongTensor(f"execute takes a function and its arguments, not {type(function).__name__}")
    grid = grid_of(mesh)
    engine = grid.engine
    tensors: list[Tensor] = []

    def hole(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(
            value.detach() if isinstance(value, Tensor) else engine.put(value, grid, grid.replicated)
        )
        if tensors[-1].mesh_meta.grid.engine is not engine:
            raise WrongTensor(
                "WRONG_MESH: execute on a mesh with a tensor of another one: "
                "monarch_nb.distribute(x.full(), mesh, ...) brings it here"
            )
        return Hole(len(tensors) - 1)

    positional, named = pytree.tree_map(hole, tuple(args)), tuple(pytree.tree_map(hole, dict(kwargs)).items())
    unknown = intern((), (), torch.float32, grid, None)
    made = engine.own("own.call", (function, positional, named), tensors, unknown)
    return _result(engine.fetch(made, "describe"), made, grid)


def _result(answers: Sequence[Any], made: Tensor, grid: Grid) -> Any:
    """Put together what ranks say of a result."""
    leaves, structure = pytree.tree_flatten(answers[0])
    if any(isinstance(leaf, Described) for leaf in leaves):
        _check_alike(answers)
        numbers = itertools.count()
        made_of = [
            _part(leaf, made, next(numbers), grid) if isinstance(leaf, Described) else leaf for leaf in leaves
        ]
        return pytree.tree_unflatten(made_of, structure)
    try:
        agree = all(bool(answer == answers[0]) for answer in answers)
    except Exception:  # of a class of the user's: compared by nobody
        agree = False
    return answers[0] if agree else list(answers)


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
