"""Sharding strategies of operations that torch has no rule for. The controller and the ranks register the
same ones, since they must agree.

Attention on CPUs: batches and heads are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from monarch_nb._rank.tensor.private import attention_on_cpu, attention_on_cpu_backward, dispatcher


def has_rule(op: Any) -> bool:
    """Say whether an operation can be looked up. Torch would take others apart, which takes seconds at
    first and may give other strides.
    """
    rules = dispatcher.sharding_propagator
    return op in rules.op_strategy_funcs or op in rules.op_single_dim_strategy_funcs


def _alike(num_outputs: int, num_inputs: int) -> Callable[..., Any]:
    """Return the rule of an operation that does each batch and each head by itself. Other arguments than
    tensors follow the inputs.
    """

    def layouts(*args: Any, **_: Any) -> Any:
        rest = [None] * (len(args) - num_inputs)
        return [
            ([each] * num_outputs, [each] * num_inputs + rest) for each in (Replicate(), Shard(0), Shard(1))
        ]

    return layouts


def _register() -> None:
    if not has_rule(attention_on_cpu):
        register_sharding(attention_on_cpu)(_alike(2, 3))
    if not has_rule(attention_on_cpu_backward):
        register_sharding(attention_on_cpu_backward)(_alike(3, 6))


_register()
