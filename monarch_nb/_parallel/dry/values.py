"""Tensors of a dry run: over all ranks, with a layout, and without values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import Partial

from monarch_nb._parallel.dry.outcome import CantFollow
from monarch_nb._rank.tensor.private import make_wrapper, no_torch_function
from monarch_nb._tensor.metadata import Meta, intern


class Dry(torch.Tensor):  # type: ignore[misc]
    """A tensor over all ranks, with a layout and without values."""

    mesh_meta: Meta

    @staticmethod
    def __new__(cls, meta: Meta, requires_grad: bool = False) -> Dry:
        made = make_wrapper(
            cls, meta.size, strides=meta.stride, storage_offset=meta.offset, dtype=meta.dtype, device="cpu",
            requires_grad=requires_grad,
        )  # fmt: skip
        made.mesh_meta = meta
        return made  # type: ignore[no-any-return]

    __torch_function__ = no_torch_function

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What `isinstance` takes it for, too: models ask so whether a tensor has numbers."""
        return FakeTensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise `CantFollow`: this is called only outside of a dry run, where the tensor supports no
        operations.
        """
        raise CantFollow(f"{func} after the dry run")

    def __deepcopy__(self, memo: Any) -> Any:
        raise CantFollow("a tensor lies where it isn't found")


def is_dry(value: Any) -> bool:
    """Return whether a value is a tensor of a dry run."""
    return type(value) is Dry


class Lay(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function that changes the layout of a tensor, and its strides, if there are any."""

    @staticmethod
    def forward(ctx: Any, value: Dry, layout: Any, stride: tuple[int, ...] | None = None) -> Any:
        meta = value.mesh_meta
        return Dry(intern(meta.size, stride or meta.stride, meta.dtype, meta.grid, (layout,)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError


def is_everywhere(value: torch.Tensor) -> bool:
    """Say whether all ranks have the same."""
    return not is_dry(value) or all(each.is_replicate() for each in value.mesh_meta.placements)


def as_mean(meta: Meta | None) -> Meta | None:
    """Return the metadata of a loss that is computed by torch's operation itself: each rank has its mean."""
    if meta is None or not any(each.is_partial() for each in meta.placements or ()):
        return meta
    return meta.with_layout((Partial("avg"),))


def spec(value: Any) -> Any:
    """Return a dry tensor as (shape, dtype, sharded dimension), from which random values are made; other
    values unchanged.
    """
    if not is_dry(value):
        return value
    layout = value.mesh_meta.placements[0]
    return tuple(value.shape), value.dtype, layout.dim if layout.is_shard() else None


def in_order(size: Sequence[int], like: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of a tensor without gaps whose dimensions lie in memory in the order of others.

    >>> in_order((2, 3, 5), (4, 8, 1))
    (5, 10, 1)
    """
    made, step = [0] * len(size), 1
    if len(like) != len(size):
        return None
    for dim in sorted(range(len(size)), key=lambda n: (like[n], -n)):
        made[dim] = step
        step *= size[dim]
    return tuple(made)
