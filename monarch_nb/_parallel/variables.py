"""Variables of the user's program that a module's methods read.

Classes and functions of a notebook, or of a script itself, are sent by value: ranks have them, and the
variables that they read, as these were then. Modules that can be imported have variables of their own in each
process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from monarch_nb._parallel.contents import compared, contents
from monarch_nb._tensor.reach import global_names

_DEEPEST = 4
"""How far functions that methods call are followed."""
_PROGRAM = "__main__"
_NOTHING = object()
Variable = tuple[Mapping[str, Any], str]
"""A namespace, and a name in it."""


class Variables:
    """The variables of the program that the methods of some layers read, and these methods.

    Args:
        layers: the layers.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        kinds = {kind for layer in layers for kind in type(layer).__mro__ if kind.__module__ == _PROGRAM}
        self._kinds = sorted(kinds, key=id)
        self.look()

    def look(self) -> None:
        """Take them as they are now."""
        found = {(id(names), name): (names, name) for kind in self._kinds for names, name in _read_in(kind)}
        self._read = [*found.values()]
        self._seen = self._values()

    def were_changed(self) -> bool:
        """Say whether some are others than at the last look, and take them as they are."""
        if not self._read or self._values() == self._seen:
            return False
        self.look()
        return True

    def _values(self) -> list[Any]:
        values = [names.get(name, _NOTHING) for names, name in self._read]
        return [(compared(value), contents(value)) for value in values]


def _read_in(kind: type) -> Iterator[Variable]:
    """Yield the methods of a class, and what they read."""
    own, seen = vars(kind), set[int]()
    for name, value in own.items():
        if (function := _function(value)) is not None:
            yield own, name
            yield from _read_by(function, _DEEPEST, seen)


def _read_by(function: FunctionType, depth: int, seen: set[int]) -> Iterator[Variable]:
    """Yield what a function reads, and what functions of the program that it calls read."""
    if id(function) in seen:
        return
    seen.add(id(function))
    names = function.__globals__
    for name in global_names(function.__code__):
        value = names.get(name, _NOTHING)
        if value is _NOTHING or issubclass(type(value), (ModuleType, type)):
            continue
        yield names, name
        called = _function(value)
        if called is not None and depth:
            yield from _read_by(called, depth - 1, seen)


def _function(value: Any) -> FunctionType | None:
    """Return the program's function that a method, a decorated function or a property's getter is."""
    if type(value) is property:
        value = value.fget
    elif type(value) in (staticmethod, classmethod):
        value = value.__func__
    if type(value) is not FunctionType:
        return None
    value = getattr(value, "__wrapped__", value)
    return value if type(value) is FunctionType and value.__module__ == _PROGRAM else None
