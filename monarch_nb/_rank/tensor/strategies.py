"""Sharding strategies of operations that torch has no rule for. The controller and the ranks register the
same ones, since they must agree.

Most are of `rules`. Attention on CPUs: batches and heads are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from monarch_nb._rank.tensor.losses import WITH_TARGETS, means_as_torch
from monarch_nb._rank.tensor.private import attention_on_cpu, attention_on_cpu_backward, dispatcher, schema_of
from monarch_nb._rank.tensor.rules import RULES, WRONG_IN_TORCH, Rule, is_spec

_SAME_AS = {torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor}
"""Operations that differ only in what autograd may assume from those that torch has a rule for."""


def has_rule(op: Any) -> bool:
    """Say whether an operation can be looked up. Torch would take others apart, which takes seconds at
    first and may give other strides.
    """
    rules = dispatcher.sharding_propagator
    return op in rules.op_strategy_funcs or op in rules.op_single_dim_strategy_funcs


def _attention(num_outputs: int, num_inputs: int) -> Callable[..., Any]:
    """Return the rule of attention: it does each batch and each head by itself. Other arguments than tensors
    follow the inputs; a mask may be that of all batches and heads.
    """

    def layouts(*args: Any, **kwargs: Any) -> Any:
        masks = [kwargs["attn_mask"]] if is_spec(kwargs.get("attn_mask")) else []
        rest = [None] * (len(args) - num_inputs)
        return [
            ([each] * num_outputs, [each] * num_inputs + rest + [_of_mask(mask, each) for mask in masks])
            for each in (Replicate(), Shard(0), Shard(1))
        ]

    return layouts


def _of_mask(mask: Any, layout: Any) -> Placement:
    """Return the layout of an attention's mask beside inputs of a layout."""
    size = mask.tensor_meta.shape
    at = layout.dim - 4 + len(size) if layout.is_shard() else -1
    return Shard(at) if at >= 0 and size[at] > 1 else Replicate()


def layout_of_named(op: Any, first: Sequence[Placement], spec: Any) -> tuple[Placement, ...]:
    """Return the layout that an operation needs of a tensor among its named arguments: DTensor doesn't see to
    these.

    Args:
        first: the layout of its first input, as it's needed.
        spec: the named tensor's.
    """
    if op in (attention_on_cpu, attention_on_cpu_backward):
        return tuple(_of_mask(spec, each) for each in first)
    return tuple(Replicate() for _ in first)


def _by_rule(rule: Rule, num_outputs: int) -> Callable[..., Any]:
    """Return torch's form of a rule: with the layout in which everything is whole, and None for arguments
    that are no tensors.
    """

    def layouts(*args: Any, **kwargs: Any) -> Any:
        num_inputs = sum(map(is_spec, args))
        whole = ([Replicate()] * num_outputs, [Replicate()] * num_inputs)
        return [(list(out), _spread(ins, args)) for out, ins in (whole, *rule(*args, **kwargs))]

    return layouts


def _spread(placements: Sequence[Placement], args: Sequence[Any]) -> list[Placement | None]:
    left = iter(placements)
    return [next(left) if is_spec(each) else None for each in args]


def _note_arguments(op: Any) -> None:
    """Have layouts looked up anew where any argument differs: torch expects that of the first int on only."""
    arguments = schema_of(op).arguments
    positional = [each for each in arguments if not each.kwarg_only]
    others = [n for n, each in enumerate(positional) if "Tensor" not in str(each.type)]
    info = dispatcher.sharding_propagator.op_to_schema_info[op]
    info.static_argnum = others[0] if others else len(positional)
    info.static_kwargkey = [each.name for each in arguments if each.kwarg_only] or None


def _register() -> None:
    known = dispatcher.sharding_propagator
    for op, like in _SAME_AS.items():
        if not has_rule(op):
            known.op_strategy_funcs[op] = known.op_strategy_funcs[like]
            known.op_to_schema_info[op] = known.op_to_schema_info[like]
    for op, rule in (RULES | WRONG_IN_TORCH).items():
        if not has_rule(op) or op in WRONG_IN_TORCH:
            known.op_single_dim_strategy_funcs.pop(op, None)  # it would come first
            of_torch = known.op_strategy_funcs.get(op)
            register_sharding(op)(_by_rule(rule, len(schema_of(op).returns)))
            _note_arguments(op)
            if op in WITH_TARGETS:
                known.op_strategy_funcs[op] = means_as_torch(known.op_strategy_funcs[op], of_torch)
    if not has_rule(attention_on_cpu):
        register_sharding(attention_on_cpu)(_attention(2, 3))
    if not has_rule(attention_on_cpu_backward):
        register_sharding(attention_on_cpu_backward)(_attention(3, 6))


_register()
