"""The shape of an operation's result: which tensors it consists of, and how these are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from monarch_nb._rank.tensor.private import schema_of
from monarch_nb._tensor.metadata import Meta


def is_single(func: Any) -> bool:
    """Return whether an operation returns one tensor."""
    returns = schema_of(func).returns
    return len(returns) == 1 and str(returns[0].type) in ("Tensor", "Optional[Tensor]")


def described(outputs: Sequence[Any]) -> tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]:
    """Return size, strides and dtype of new tensors."""
    return tuple((tuple(p.size), tuple(p.stride), p.dtype) for p in outputs if isinstance(p, Meta))


def only_part(parts: list[Any]) -> Any:
    """Return the only part of a result."""
    return parts[0]


def shape_of_result(
    func: Any, parts: tuple[Meta | None, ...], where: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[Any, ...], Callable[[list[Any]], Any] | None]:
    """Return the output tensors of an operation, inputs that it returns by their position, and the function
    that assembles the result.
    """
    returns = schema_of(func).returns
    if not returns:
        return (), lambda _: None
    by_alias = {
        alias: where[a.name]
        for a in schema_of(func).arguments
        if a.alias_info is not None and a.alias_info.is_write and where.get(a.name)
        for alias in a.alias_info.before_set
    }
    outputs: list[Any] = list(parts)
    for n, each in enumerate(returns):
        if each.alias_info is not None and each.alias_info.is_write:
            outputs[n] = by_alias[next(iter(each.alias_info.before_set))][0]
    if is_single(func):
        return (outputs[0],), None if isinstance(outputs[0], Meta) else only_part
    return tuple(outputs), list if len(returns) == 1 else tuple
