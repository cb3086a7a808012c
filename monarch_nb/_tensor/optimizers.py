"""Optimisers of torch, whose parameters are tensors of a mesh: how they step through them, and
where the state goes that they load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from monarch_nb._rank.tensor.laying import part_bytes
from monarch_nb._rank.tensor.private import default_to_lists, replace_loaded_state
from monarch_nb._tensor.tensor import Tensor

LIST_BYTES = 1 << 18
"""On a CPU, parameters whose parts are larger than this on average are stepped one by one: lists of temporary
results are larger than caches then, and memory that is new each time takes longer than operations.
"""


def _should_be_lists(params: Sequence[Any]) -> bool:
    """Say whether an optimiser had best step through all of its parameters at once: ten operations on lists
    instead of ten on each cost this process and the ranks less.
    """
    first = params[0] if params else None
    if not isinstance(first, Tensor) or not first.is_global:
        return False
    grid = first.mesh_meta.grid
    if not all(isinstance(each, Tensor) and each.mesh_meta.grid is grid for each in params):
        return False
    if grid.device_mesh.device_type != "cpu":
        return True
    metas = [each.mesh_meta for each in params]
    sizes = (part_bytes(each.num_bytes, grid.shape, each.placements or ()) for each in metas)
    return sum(sizes) <= LIST_BYTES * len(params)


def _loaded(by_torch: Callable[..., Any]) -> Callable[..., Any]:
    """Return what brings a loaded value to its parameter."""

    def bring(param: torch.Tensor, value: torch.Tensor, *args: Any, **named: Any) -> Any:
        key = args[2] if len(args) > 2 else named.get("key")
        if not isinstance(param, Tensor) or isinstance(value, Tensor) or key == "step":
            return by_torch(param, value, *args, **named)
        meta = param.mesh_meta
        layout = meta.placements if value.shape == param.shape else meta.grid.replicated
        dtype = param.dtype if param.is_floating_point() else value.dtype
        return param.engine.put(value.detach().to(dtype), meta.grid, layout)

    return bring


default_to_lists(_should_be_lists)
replace_loaded_state(_loaded)
