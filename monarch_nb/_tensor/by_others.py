"""Operations that are done by others, for which there are rules how results are split.

Layers of attention are evaluated by operations of their own, without gradients. An empty tensor among those
that are joined has no dimensions that could be split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

_aten = torch.ops.aten
_OF_QUERIES, _OF_KEYS = 0, 1
"""Kinds of masks, as torch counts them: (queries, keys), and (batch, keys). Others are of all of these."""


def attention(
    query: torch.Tensor,
    _key: torch.Tensor,
    _value: torch.Tensor,
    width: int,
    num_heads: int,
    weights_in: torch.Tensor,
    bias_in: torch.Tensor,
    weights_out: torch.Tensor,
    bias_out: torch.Tensor,
    mask: torch.Tensor | None = None,
    wants_shares: bool = True,
    takes_mean: bool = True,
    mask_kind: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what `aten._native_multi_head_attention` does, of a sequence with itself.

    Args:
        query: (batch, length, width). Keys and values are the same.
        mask: not zero where a key isn't looked at.
        wants_shares: whether the share of each key is returned, too; of all heads, or their mean.
    """
    batch, length, _ = query.shape
    parts = functional.linear(query, weights_in, bias_in).chunk(3, -1)
    queries, keys, values = (
        part.reshape(batch, length, num_heads, width // num_heads).transpose(1, 2) for part in parts
    )
    hidden = None if mask is None else _over_heads(mask.bool(), mask_kind)
    shares = None
    if wants_shares:
        scores = (queries / math.sqrt(width // num_heads)) @ keys.transpose(-2, -1)
        scores = scores if hidden is None else scores.masked_fill(hidden, -math.inf)
        shares = scores.softmax(-1)
        found = shares @ values
        shares = shares.mean(1) if takes_mean else shares
    else:
        seen = None if hidden is None else hidden.logical_not()
        found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
    found = found.transpose(1, 2).reshape(batch, length, width)
    return functional.linear(found, weights_out, bias_out), shares


def _over_heads(mask: torch.Tensor, kind: int | None) -> torch.Tensor:
    """Return a mask with dimensions that fit (batch, heads, queries, keys)."""
    if kind == _OF_QUERIES:
        return mask[None, None]
    return mask[:, None, None, :] if kind == _OF_KEYS else mask


def encoder_layer(
    source: torch.Tensor,
    width: int,
    num_heads: int,
    weights_in: torch.Tensor,
    bias_in: torch.Tensor,
    weights_out: torch.Tensor,
    bias_out: torch.Tensor,
    uses_gelu: bool,
    norm_first: bool,
    eps: float,
    scale_1: torch.Tensor,
    shift_1: torch.Tensor,
    scale_2: torch.Tensor,
    shift_2: torch.Tensor,
    weights_1: torch.Tensor,
    bias_1: torch.Tensor,
    weights_2: torch.Tensor,
    bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_kind: int | None = None,
) -> torch.Tensor:
    """Return what `aten._transformer_encoder_layer_fwd` does: the forward of `nn.TransformerEncoderLayer`.

    Args:
        source: (batch, length, width).
        scale_1, shift_1: of the norm that belongs to the attention; `scale_2`, `shift_2` of the other one.
    """

    def attend(x: torch.Tensor) -> torch.Tensor:
        weights = weights_in, bias_in, weights_out, bias_out
        return attention(x, x, x, width, num_heads, *weights, mask, False, True, mask_kind)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        activation = functional.gelu if uses_gelu else functional.relu
        return functional.linear(activation(functional.linear(x, weights_1, bias_1)), weights_2, bias_2)

    def first(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), scale_1, shift_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), scale_2, shift_2, eps)

    if norm_first:
        between = source + attend(first(source))
        return between + feed(second(between))
    between = first(source + attend(source))
    return second(between + feed(between))


def _never(*_: Any) -> bool:
    return False


def joined(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Return what `aten.cat` does with empty tensors among others; NotImplemented if there are none."""
    left = [each for each in tensors if each.shape != (0,)]
    return torch.cat(left, dim) if left and len(left) < len(tensors) else NotImplemented


BY_OTHERS: dict[Any, Callable[..., Any]] = {
    _aten.cat.default: joined,
    _aten._native_multi_head_attention.default: attention,
    _aten._transformer_encoder_layer_fwd.default: encoder_layer,
    # whether a batch of padded sequences may become a nested tensor, which none of a mesh can be
    _aten._nested_tensor_from_mask_left_aligned.default: _never,
}


TAKEN_APART = frozenset(
    {
        _aten.mse_loss.default,
        _aten.mse_loss_backward.default,
        _aten.huber_loss.default,
        _aten.huber_loss_backward.default,
        _aten.smooth_l1_loss.default,
        _aten.smooth_l1_loss_backward.default,
        _aten.binary_cross_entropy.default,
        _aten.binary_cross_entropy_backward.default,
        _aten.soft_margin_loss.default,
        _aten.soft_margin_loss_backward.default,
        _aten.dist.default,
        _aten.trace.default,
        _aten.rot90.default,
    }
)
"""Operations that torch has no sharding rule for, but has for their decompositions."""
