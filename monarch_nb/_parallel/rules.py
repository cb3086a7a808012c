"""Sharding rules for operations that each rank can do on its own rows, though torch has no rule for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Shard

aten = torch.ops.aten

_ROWS = frozenset(
    {
        "convolution",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "avg_pool2d",
        "avg_pool3d",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "adaptive_max_pool2d",
        "upsample_nearest2d",
        "upsample_bilinear2d",
        "reflection_pad1d",
        "reflection_pad2d",
        "replication_pad2d",
        "constant_pad_nd",
        "native_group_norm",
        "pixel_shuffle",
        "im2col",
        "grid_sampler_2d",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "mkldnn_rnn_layer",
    }
)
"""Operations that handle each element of their first argument's first dimension separately."""
_NORMS = frozenset({"native_batch_norm", "_native_batch_norm_legit"})
_TRAINING = 5
_UNIFORM = frozenset(
    {
        "zeros",
        "ones",
        "full",
        "empty",
        "empty_strided",
        "rand",
        "randn",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
    }
)
_SHAPING = frozenset(
    {
        "view",
        "_unsafe_view",
        "reshape",
        "expand",
        "repeat",
        "slice",
        "narrow",
        "split",
        "split_with_sizes",
        "unsafe_split",
        "as_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
        "_reshape_alias",
        "unfold",
        "view_copy",
        "expand_copy",
    }
)


def _name(func: Any) -> str:
    return str(getattr(func, "overloadpacket", func)).removeprefix("aten.")


def row_layout(dim: int = 0) -> Shard:
    """Return the layout of a batch that is split over the ranks."""
    return Shard(dim)


def row_dim(value: torch.Tensor, rows: int) -> int | None:
    """Return the dimension along which an argument of a call is split; None if each rank has all of it.

    It's the first one, if that's as long as the batch. A tensor of the mesh that is split along another one
    stays so: a recurrent layer's state, for one, which a call has returned and the next one takes.
    """
    placements = getattr(getattr(value, "mesh_meta", None), "placements", None) or ()
    dims = {each.dim for each in placements if each.is_shard()}
    if len(dims) == 1 and value.shape[found := dims.pop()] == rows:
        return int(found)
    return 0 if value.dim() and value.shape[0] == rows else None


def is_by_rows(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation processes each row of its first argument, which is split over rows,
    separately.
    """
    name = _name(func)
    if name not in _ROWS or not hasattr(args[0], "mesh_meta"):
        return False
    first, *rest = [x for x in args if hasattr(x, "mesh_meta")]
    if first.mesh_meta.placements != (Shard(0),) or not all(
        x.mesh_meta.placements[0].is_replicate() for x in rest
    ):
        return False
    return name not in _NORMS or not args[_TRAINING]


def is_part(layout: Any) -> bool:
    """Return whether ranks have parts of a tensor along a dimension, one after the other or in turns."""
    return not layout.is_replicate() and not layout.is_partial()


def is_view(func: Any) -> bool:
    """Return whether an operation is what `view` and `reshape` come to."""
    return _name(func) in ("view", "_unsafe_view", "_reshape_alias")


def is_uniform(func: Any) -> bool:
    """Return whether a factory's values don't depend on the rank: constants, or random numbers."""
    return _name(func) in _UNIFORM


def is_shaping(func: Any) -> bool:
    """Return whether numbers among the arguments are sizes, so that the result's shape shows whether they are
    right.
    """
    return _name(func) in _SHAPING or _name(func) in _UNIFORM


def reason_of(func: Any) -> str:
    """Return why ranks can't execute an operation on their rows."""
    return "its statistics are of all rows" if _name(func) in _NORMS else "it's done on whole tensors only"
