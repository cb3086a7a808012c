"""Objects of which ranks have copies: all that they lead to, to be compared with what it was before."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import nn

from monarch_nb._rank.tensor.private import version_of
from monarch_nb._tensor.reach import SIMPLE, Fact, Reach
from monarch_nb._tensor.references import Held, code_of_file
from monarch_nb._tensor.tensor import Tensor


class Contents(Reach):
    """The search for what copies of objects were made of.

    Layers aside, which are compared one by one, and tensors of the mesh: a forward in this program has left
    these, and ranks have no use for them.
    """

    def __init__(self) -> None:
        super().__init__(())

    def _tensor(self, name: tuple[Any, ...], value: torch.Tensor) -> None:
        if not issubclass(type(value), Tensor):
            self.facts.append((name, (Held(value), version_of(value))))

    def _module(self, name: tuple[Any, ...], module: nn.Module, depth: int) -> None:
        """Add nothing."""

    def _optimizer(self, name: tuple[Any, ...], optimizer: torch.optim.Optimizer) -> None:
        self.facts.append((name, Held(optimizer)))

    def _code(self, name: tuple[Any, ...], function: FunctionType) -> None:
        of_file = code_of_file(function)
        super()._code(name if of_file is None else (*name, of_file), function)


def contents(value: Any) -> list[Fact] | None:
    """Return what an attribute holds and leads to, to be compared; None for what can't change in place.

    >>> contents({"sizes": [3, 4]}) == contents({"sizes": [3, 5]})
    False
    >>> contents(3), contents(len)
    (None, None)
    """
    kind = type(value)
    if kind in SIMPLE or issubclass(kind, (Tensor, nn.Module)):
        return None
    if kind in (tuple, torch.Size) and all(type(each) in SIMPLE for each in value):
        return None
    found = Contents()
    found.add((), value)
    is_only_itself = len(found.facts) == 1 and type(found.facts[0][1]) is Held
    return None if is_only_itself else found.facts


def compared(value: Any) -> Any:
    """Return what tells whether an attribute is another one."""
    if type(value) in SIMPLE:
        return value
    return None if issubclass(type(value), Tensor) else Held(value)
