"""Saves a module and its optimiser, and resumes from the checkpoint: after a heal, in another program, or on
another number of ranks.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from monarch_nb._parallel.module import parallel_of
from monarch_nb._rank.tensor.protocol import Hole
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError


def save(path: str | os.PathLike[str], model: nn.Module, optimizer: Any = None, **more: Any) -> None:
    """Save a module of `parallelize`, with its optimiser. Each rank writes its parts, in the format of
    torch.distributed.checkpoint; the checkpoint at `path` stays complete, even if a rank dies while it
    writes.

    Args:
        path: a directory that all ranks can access. A checkpoint that it contains is replaced.
        more: further values that can be pickled, such as `step=100`; `restore` returns them.

    Raises:
        RemoteException: (a DeviceMeshError) if a rank can't write.

    Example:
        >>> monarch_nb.save("runs/gpt", model, optimizer, step=100)        # doctest: +SKIP
        >>> step = monarch_nb.restore("runs/gpt", model, optimizer)["step"]  # doctest: +SKIP
    """
    parallel_of(model)
    _done(model, "own.save", _state(model, optimizer, more), os.path.abspath(path))


def restore(path: str | os.PathLike[str], model: nn.Module, optimizer: Any = None) -> dict[str, Any]:
    """Load a checkpoint into a module and its optimiser. The module may be on another number of ranks, or
    have another strategy. After a heal the module is put on the mesh again first.

    Args:
        path: the directory that was given to `save`.
        model: a module of `parallelize`, of the same parameters.
        optimizer: its optimiser; None: only the module is loaded.

    Returns:
        the further values that were saved, such as `{"step": 100}`.

    Raises:
        RemoteException: (a DeviceMeshError) if there is no checkpoint, or it's of another module.
    """
    parallel_of(model).revive()
    if optimizer is not None:
        optimizer.zero_grad()
        _make_state(model, optimizer)
    state = _state(model, optimizer, {})
    found = pickle.loads(_done(model, "own.load", state, os.path.abspath(path)))
    if optimizer is not None:
        if "optimizer" not in found:
            raise MeshUsageError(f"{path} was saved without an optimiser: restore(path, model)")
        saved_state = found["optimizer"]["state"]
        numbered = (p for group in optimizer.param_groups for p in group["params"])
        for number, each in enumerate(numbered):  # nothing was saved for a parameter without gradients
            if number in saved_state:
                _take_over(optimizer.state[each], saved_state[number])
            else:
                optimizer.state.pop(each, None)
        for group, saved in zip(optimizer.param_groups, found["optimizer"]["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})
    more: dict[str, Any] = found["more"]
    return more


def _state(model: nn.Module, optimizer: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {"model": dict(model.state_dict()), "more": dict(more)}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    return state


def _done(model: nn.Module, op: str, state: Any, path: str) -> Any:
    """Execute an operation on a state dict on the ranks, and wait; return the first rank's result."""
    tensors: list[Tensor] = []

    def hole(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.detach())
            return Hole(len(tensors) - 1)
        if isinstance(value, Mapping):
            return {key: hole(each) for key, each in value.items()}
        return type(value)(map(hole, value)) if type(value) in (list, tuple) else value

    parallel = parallel_of(model)
    engine = parallel.grid.engine
    made = engine.own(op, (hole(state), path), tensors, parallel.unknown)
    return engine.fetch(made, "describe")[0]


def _make_state(model: nn.Module, optimizer: Any) -> None:
    """Create an optimiser's state, by a step of length 0."""
    optimizer.state.clear()
    with _without_effect(optimizer):
        for each in model.parameters():
            each.grad = torch.zeros_like(each) if each.requires_grad else None
        optimizer.step()
    for each in model.parameters():
        each.grad = None


@contextmanager
def _without_effect(optimizer: Any) -> Iterator[None]:
    before = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    yield
    for group, lr in zip(optimizer.param_groups, before, strict=True):
        group["lr"] = lr


def _take_over(live: Any, saved: Any) -> None:
    """Copy plain tensors, which the ranks don't fill, from a saved state into a live one."""
    if isinstance(live, torch.Tensor) and not isinstance(live, Tensor):
        live.copy_(saved)
    elif isinstance(live, Mapping):
        for key, each in live.items():
            _take_over(each, saved[key])
