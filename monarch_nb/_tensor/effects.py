"""Finds what recorded commands change outside of their recording. If they change nothing, a replay of them
can be forgotten, and the function be called instead.

Gradients that are set don't count: the former ones can be set again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch

from monarch_nb._rank.tensor.private import schema_of
from monarch_nb._tensor.recorded import Made, Part, Recorded, Value

_PURE = frozenset({"own.put", "own.whole", "own.local", "own.part", "own.redistribute", "own.from_local"})
"""The executor's own operations that only make values; these may share memory with what they're made of."""


def changes_something(parts: Sequence[Part]) -> bool:
    """Return whether parts change a tensor from outside, the ranks' generators of random numbers, or anything
    that isn't known.
    """
    shared: set[Value] = set()
    for part in parts:
        if part.versions or part.optimizer is not None:
            return True
        for command in part.commands:
            if _is_effect(command, shared):
                return True
            if _shares(command.plan.op) and any(_is_outside(each, shared) for each in command.inputs):
                shared.update(command.outputs)
    return False


def _is_effect(command: Recorded, shared: set[Value]) -> bool:
    plan = command.plan
    if not plan.op.startswith("aten."):
        return plan.op not in _PURE
    if any(_is_outside(command.inputs[n], shared) for n in plan.writes):
        return True
    return plan.draws and not plan.is_random


def _is_outside(value: Value, shared: set[Value]) -> bool:
    """Return whether a value may share memory with a tensor from outside."""
    return not isinstance(value, Made) or value in shared


@functools.cache
def _shares(op: str) -> bool:
    """Return whether an operation's result may share memory with its arguments."""
    if not op.startswith("aten."):
        return True
    return any(each.alias_info is not None for each in schema_of(_operator(op)).returns)


@functools.cache
def _operator(op: str) -> Any:
    return attrgetter(op)(torch.ops)
