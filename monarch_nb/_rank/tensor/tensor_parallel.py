"""Tensor parallelism on a rank, by torch's own styles: which layers are split how, and the layouts of
parameters that follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from monarch_nb._rank.tensor.private import local_of, spec_of
from monarch_nb._rank.tensor.protocol import TensorPlan

STYLES = ("colwise", "rowwise", "colwise_gather_output", "replicated_with_grad_allreduce")
GATHERED, SHARED = STYLES[2:]
WHOLE_RESULTS = ("rowwise", GATHERED)


def style_of(layer: nn.Module, style: str, dim: int) -> ParallelStyle:
    """Return torch's form of a style.

    Args:
        dim: along which a layer of style "replicated_with_grad_allreduce" gets its input in parts.
    """
    if style == "colwise":
        return ColwiseParallel()
    if style == GATHERED:
        return ColwiseParallel(output_layouts=Replicate())
    if style == SHARED:
        return SequenceParallel(sequence_dim=dim, use_local_output=True)
    return RowwiseParallel(input_layouts=Replicate() if isinstance(layer, nn.Embedding) else Shard(-1))


def dims_of(module: nn.Module, plan: Mapping[str, str]) -> dict[str, int]:
    """Return along which dimension each split parameter is split, by its name; of a shared one, by the first
    of its names.

    >>> dims_of(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2)), {"0": "colwise", "1": "rowwise"})
    {'0.weight': 0, '0.bias': 0, '1.weight': 1}
    """
    names = {id(each): name for name, each in module.named_parameters()}
    found = {}
    for path, style in plan.items():
        layer = module.get_submodule(path)
        for name, each in layer.named_parameters(recurse=False):
            dim = _dim(layer, style, name)
            if dim is not None:
                found[names[id(each)]] = dim
    return found


def _dim(layer: nn.Module, style: str, name: str) -> int | None:
    if style == SHARED:
        return None
    is_by_rows = (style == "rowwise") != isinstance(layer, nn.Embedding)
    if name == "weight":
        return int(is_by_rows)
    return None if is_by_rows else 0


def apply_plan(module: nn.Module, plan: TensorPlan, line: Any) -> None:
    """Split a module's layers over a line of ranks. Parameters may be on `meta`.

    Args:
        line: the device mesh, of one axis.
    """
    ties: dict[int, list[tuple[nn.Module, str]]] = {}
    for layer in module.modules():
        for name, each in layer.named_parameters(recurse=False, remove_duplicate=False):
            ties.setdefault(id(each), []).append((layer, name))
    styles = {
        each.path: style_of(module.get_submodule(each.path), each.style, each.dim) for each in plan.layers
    }
    parallelize_module(module, line, styles, src_data_rank=None)
    for (layer, name), *others in ties.values():
        for other, its_name in others:
            setattr(other, its_name, getattr(layer, name))
    for each in plan.divided:
        setattr(module.get_submodule(each.path), each.attribute, each.value)


class LocalParameters:
    """Parameters as DDP takes them: this rank's parts as plain tensors, of which each forward makes DTensors.

    They stay in the module after a forward: checkpointing computes layers again in the backward.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places: list[tuple[dict[str, Any], str, nn.Parameter, Any]] = []
        made: dict[int, nn.Parameter] = {}
        for layer in module.modules():
            for name, each in layer.named_parameters(recurse=False, remove_duplicate=False):
                if isinstance(each, DTensor):
                    if id(each) not in made:
                        made[id(each)] = nn.Parameter(local_of(each).detach(), each.requires_grad)
                    own: dict[str, Any] = layer._parameters
                    self._places.append((own, name, made[id(each)], spec_of(each)))
                    own[name] = made[id(each)]

    def enter(self) -> None:
        """Put DTensors in place, with a history that leads to the plain parameters."""
        made: dict[int, DTensor] = {}
        with torch.enable_grad():
            for own, name, plain, spec in self._places:
                if id(plain) not in made:
                    made[id(plain)] = _with_history(plain, spec)
                own[name] = made[id(plain)]


def _with_history(plain: nn.Parameter, spec: Any) -> DTensor:
    return DTensor.from_local(
        plain, spec.mesh, spec.placements, run_check=False, shape=spec.shape, stride=spec.stride
    )


def seeded(function: Callable[..., Any], seed: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function with random numbers of a seed; the process' own generator stays as it is."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return function(*args, **kwargs)
