"""The contents of objects, to be compared with what these were before."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from monarch_nb._rank.tensor.private import version_of
from monarch_nb._tensor.tensor import Tensor

_SIMPLE = frozenset({bool, int, float, str, type(None)})
_COLLECTIONS = (dict, list, tuple, set, frozenset)
_MANY = 1000


def contents(value: Any, depth: int = 2) -> Any:
    """Return what an attribute holds, to be compared: the items of a list, a dictionary or a set, the
    attributes of another object, as a configuration is, and what these hold; of a tensor its version. None
    for what holds nothing.

    >>> contents({"sizes": [3, 4]}) == contents({"sizes": [3, 5]})
    False
    >>> contents(3), contents(len)
    (None, None)

    Of large collections it's the number of items, so that a look is short.
    """
    kind = type(value)
    if depth == 0 or kind in _SIMPLE or issubclass(kind, (Tensor, nn.Module, type)):
        return None
    if issubclass(kind, torch.Tensor):
        return version_of(value)
    try:
        inside: Any = value
        if not issubclass(kind, _COLLECTIONS):
            inside = None if callable(value) else vars(value)
        if len(inside) > _MANY:
            return len(inside)
        named = inside.items() if issubclass(type(inside), dict) else enumerate(inside)
        return [(name, compared(each), contents(each, depth - 1)) for name, each in named]
    except Exception:  # it has no attributes, or doesn't say which
        return None


class _Same:
    """A mark of an object that is equal only to itself. It keeps that: no other one gets its address."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other._value is self._value

    __hash__ = object.__hash__


def compared(value: Any) -> Any:
    """Return what tells whether an attribute, or a variable, is another one."""
    if type(value) in _SIMPLE:
        return value
    if issubclass(type(value), Tensor):  # a forward in this program has left it: ranks have no use for it
        return None
    return _Same(value)
