"""Tensors in arguments and results of modules: in containers that torch knows (its pytree), and in other
objects, such as a cache of keys and values.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

_CONSTANTS = frozenset({
    bool, int, float, complex, str, bytes, type(None), type(...), range, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Size, types.FunctionType, types.BuiltinFunctionType,
})  # fmt: skip
_COLLECTIONS = (list, tuple, set, frozenset, deque)
MAX_OBJECTS = 100_000


def is_constant(value: Any) -> bool:
    """Say whether a value can't be changed, and holds no tensor.

    >>> is_constant(3), is_constant(torch.float32), is_constant([3]), is_constant(torch.ones(2))
    (True, True, False, False)
    """
    kind = type(value)
    if kind in _CONSTANTS or issubclass(kind, (type, enum.Enum)):
        return True
    parameters: Any = getattr(kind, "__dataclass_params__", None)
    return bool(parameters and parameters.frozen) and all(
        is_constant(getattr(value, f.name)) for f in dataclasses.fields(value)
    )


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Return a module's results, flat.

    >>> tensors_of({"loss": torch.tensor(1.0), "cache": types.SimpleNamespace(keys=[torch.tensor(2.0)])})
    [tensor(1.), tensor(2.)]
    """
    return [each for leaf in pytree.tree_leaves(result) for each in tensors_in(leaf)]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors that an object holds, each once, in the order of its attributes and items. Modules
    aren't looked into.

    Raises:
        ValueError: if it holds too many objects.
    """
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    todo = [value]
    while todo:
        each = todo.pop()
        if is_constant(each) or id(each) in seen:
            continue
        seen.add(id(each))
        if len(seen) > MAX_OBJECTS:
            raise ValueError(f"{type(value).__name__} holds more than {MAX_OBJECTS:,} objects")
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif not isinstance(each, (torch.nn.Module, types.ModuleType)):
            todo += reversed(list(_parts(each)))
    return found


def _parts(value: Any) -> Iterator[Any]:
    """Yield what an object holds directly."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, _COLLECTIONS):
        yield from value
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(vars(kind).get(name), types.MemberDescriptorType) and hasattr(value, name):
                yield getattr(value, name)
    yield from getattr(value, "__dict__", {}).values()


class Template:
    """An object of a result, with marks in place of its tensors.

    Args:
        value: the object.

    Attributes:
        marks: the tensors that it holds.
    """

    def __init__(self, value: Any) -> None:
        self._value, self.marks = value, tensors_in(value)

    def filled(self, tensors: Iterable[Any]) -> Any:
        """Return a copy of the object with these tensors: the next ones of an iterator."""
        memo = {id(mark): tensor for mark, tensor in zip(self.marks, tensors, strict=False)}
        return copy.deepcopy(self._value, memo)
