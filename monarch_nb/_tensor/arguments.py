"""Arguments of operations in the form that torch's sharding rules know.

A rule takes `dim=()` for no dimension, where the operation takes all, and counts a negative dimension of a
gradient from the wrong end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from monarch_nb._rank.tensor.private import schema_of

aten = torch.ops.aten
_ALL_BY_NONE = frozenset({
    aten.sum.dim_IntList, aten.mean.dim, aten.nansum.default, aten.amax.default, aten.amin.default,
    aten.var.correction, aten.std.correction, aten.var_mean.correction,
    aten.std_mean.correction, aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dim_dtype, aten.count_nonzero.dim_IntList,
})  # fmt: skip
"""Reductions that reduce all dimensions if the list of them is empty."""
_OF_RESULT = frozenset(
    {aten.select_backward.default, aten.slice_backward.default, aten.unfold_backward.default}
)
"""Gradients of views; their second argument is the size of the result, and the third a dimension of that."""

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def plain_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return arguments that mean the same, in a form that rules know.

    >>> plain_arguments(aten.sum.dim_IntList, (torch.ones(2, 3), ()), {})[0][1]
    [0, 1]
    >>> plain_arguments(aten.select_backward.default, (torch.ones(2), (2, 3), -1, 0), {})[0][2]
    1
    """
    if func in _ALL_BY_NONE:
        return _with(
            func, "dim", args, kwargs, lambda dims: dims if dims is None or len(dims) else _all(args[0])
        )
    if func in _OF_RESULT and args[2] < 0:
        return (*args[:2], args[2] + len(args[1]), *args[3:]), kwargs
    return args, kwargs


def _all(tensor: Any) -> list[int]:
    return list(range(tensor.dim()))


def _with(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], change: Callable[[Any], Any]
) -> Arguments:
    """Return arguments of which one is changed, if it's given."""
    if name in kwargs:
        return args, {**kwargs, name: change(kwargs[name])}
    at = [each.name for each in schema_of(func).arguments].index(name)
    return ((*args[:at], change(args[at]), *args[at + 1 :]), kwargs) if at < len(args) else (args, kwargs)
