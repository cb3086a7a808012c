"""Tensors created while a mesh is active: `with procs.activate(): torch.rand(3, 4)`. Each rank has a value of
its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from monarch_nb._frames.owner import frames_from, is_of_package, module_of
from monarch_nb._tensor.borrow import get_active_stream
from monarch_nb._tensor.engines import grid_of
from monarch_nb._tensor.groups import process_group as process_group
from monarch_nb._tensor.groups import rank_tensor as rank_tensor
from monarch_nb._tensor.groups import rank_tensors as rank_tensors
from monarch_nb._tensor.metadata import FREE, Grid
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.actor.active import get_active_mesh
from monarch_nb.exceptions import MeshUsageError

_NOT_USERS = ("torch.", "pickle.", "cloudpickle.", "contextlib.")
_OF_THE_RANKS = ("device", "pin_memory", "layout")
"""Keyword arguments that a rank decides, or that have only one value."""


def active_grid() -> Grid:
    """Return the grid of the active mesh, with the active stream.

    Raises:
        MeshUsageError: if no mesh is active.
    """
    mesh = get_active_mesh()
    if mesh is None:
        raise MeshUsageError(
            "this requires an active mesh: `with mesh.activate():` around it, or a tensor of a mesh as an "
            "argument"
        )
    return grid_of(mesh).variant(get_active_stream().name, FREE)


def makes_tensors() -> TorchFunctionMode:
    """Return a context in which torch's functions create tensors of the active mesh."""
    return MakesTensors()


class MakesTensors(TorchFunctionMode):  # type: ignore[misc]
    """The dispatch mode of an active mesh: tensors created by the user's code, or by a layer of torch.nn,
    belong to that mesh. Tensors that this package, optimisers and torch itself create stay in this
    process."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the user's tensor constructors on the active mesh, and any other function of torch in this
        process.
        """
        named = dict(kwargs or {})
        if func not in _device_constructors() or get_active_mesh() is None or _is_meta(named):
            return func(*args, **named)
        if _stays_here(sys._getframe(1)):
            return func(*args, **named)
        return _made(func, args, named, active_grid())


def _is_meta(named: Mapping[str, Any]) -> bool:
    return named.get("device") is not None and torch.device(named["device"]).type == "meta"


def _stays_here(frame: Any) -> bool:
    """Return whether the caller of torch is this package, or a part of torch that creates tensors for its own
    use.
    """
    modules = [f"{module_of(each)}." for each in frames_from(frame)]
    if modules and modules[0].startswith("torch.") and not modules[0].startswith("torch.nn."):
        return True
    return is_of_package(next((m for m in modules if not m.startswith(_NOT_USERS)), "").rstrip("."))


def _made(func: Callable[..., Any], args: Sequence[Any], named: dict[str, Any], grid: Grid) -> Any:
    with _OnTheRanks(grid):
        found = func(*args, **named)
    if isinstance(found, Tensor) or not isinstance(found, torch.Tensor):
        return found
    made = grid.engine.put(found, grid, None)  # made of values in this process
    return made.requires_grad_(found.requires_grad)


class _OnTheRanks(TorchDispatchMode):  # type: ignore[misc]
    """The dispatch mode that sends operations without tensor arguments to the ranks."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self._grid = grid

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation without tensor arguments on the ranks, and any other one in this process."""
        named = dict(kwargs or {})
        if any(isinstance(each, torch.Tensor) for each in (*args, *named.values())):
            return func(*args, **named)
        kept = {name: value for name, value in named.items() if name not in _OF_THE_RANKS}
        return self._grid.engine.create(func, args, kept, self._grid)
