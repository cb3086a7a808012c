"""Finds what a function sees besides its arguments: global variables, closures, the object that it belongs
to, modules and optimisers in them. What changes there may change what the function does.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from monarch_nb._frames.owner import Owner, owner_of_file
from monarch_nb._tensor.tensor import Tensor

Fact = tuple[tuple[Any, ...], Any]
"""What it is called, as parts of a name, and its value."""
SIMPLE = (int, float, bool, str, complex, type(None), torch.dtype, torch.device)
DEEPEST = 4
MOST_ITEMS = 1000


class Reach:
    """The search for what a function sees.

    Args:
        live: optimisers whose settings may change, for they take their steps in Python.

    Attributes:
        facts: what was found, as far as it decides what a function does.
        tensors: tensors of a mesh that were found.
        optimizers: optimisers that were found.
    """

    def __init__(self, live: Any) -> None:
        self._live = live
        self._seen: set[int] = set()
        self.facts: list[Fact] = []
        self.tensors: list[Tensor] = []
        self.optimizers: list[torch.optim.Optimizer] = []

    def add(self, name: tuple[Any, ...], value: Any, depth: int = 0) -> None:
        """Add a value, and what it leads to."""
        kind = type(value)
        if kind in SIMPLE:
            self.facts.append((name, (kind, value)))
        elif depth > DEEPEST or id(value) in self._seen:
            return
        else:
            self._seen.add(id(value))
            self._add_object(name, value, depth)

    def _add_object(self, name: tuple[Any, ...], value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(name, value)
        elif isinstance(value, nn.Module):
            self._module(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(name, value)
        elif isinstance(value, (FunctionType, MethodType, functools.partial)):
            if isinstance(value, FunctionType) and is_users(value):
                self.facts.append((name, id(value.__code__)))
            for part, each in seen_by(value):
                self.add((*name, part), each, depth + 1)
        elif isinstance(value, (list, tuple, dict)) and len(value) <= MOST_ITEMS:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for part, each in list(items):
                self.add((*name, part), each, depth + 1)
        elif isinstance(value, (set, frozenset)) and len(value) <= MOST_ITEMS:
            self.facts.append((name, frozenset(map(_fact, value))))
        elif isinstance(value, (np.ndarray, np.generic)):
            self.facts.append((name, value.tobytes() if value.nbytes <= MOST_ITEMS else id(value)))
        elif isinstance(_wrapped(value), FunctionType):
            self.add((*name, "function"), _wrapped(value), depth + 1)
        elif is_of_user(type(value)):
            for part, each in list(getattr(value, "__dict__", {}).items()):
                self.add((*name, part), each, depth + 1)

    def _tensor(self, name: tuple[Any, ...], value: torch.Tensor) -> None:
        self.facts.append((name, id(value)))
        if isinstance(value, Tensor):
            self.tensors.append(value)

    def _module(self, name: tuple[Any, ...], module: nn.Module) -> None:
        self.facts.append((name, id(module)))
        kinds = dict.fromkeys(kind for each in module.modules() for kind in type(each).__mro__)
        for kind in filter(is_of_user, kinds):
            for part, each in vars(kind).items():
                if type(each) is FunctionType and is_users(each):
                    self.add((kind.__name__, part), each)
        for path, each in module.named_modules():
            of = (*name, path)
            simple = [(k, v) for k, v in vars(each).items() if type(v) in SIMPLE]
            self.facts.append((of, tuple((k, type(v), v) for k, v in simple)))
            tensors = [*each._parameters.values(), *each._buffers.values()]
            self.facts.append(((*of, "tensors"), tuple(map(id, tensors))))
            self.tensors += [t for t in tensors if isinstance(t, Tensor)]

    def _optimizer(self, name: tuple[Any, ...], optimizer: torch.optim.Optimizer) -> None:
        self.facts.append((name, id(optimizer)))
        self.optimizers.append(optimizer)
        for n, group in enumerate(optimizer.param_groups):
            self.facts.append(((*name, n, "params"), tuple(map(id, group["params"]))))
            self.tensors += [p for p in group["params"] if isinstance(p, Tensor)]
        if optimizer not in self._live:
            for part, value in settings_of(optimizer):
                self.facts.append((Setting((*name, *part), optimizer), value))


def settings_of(optimizer: torch.optim.Optimizer) -> list[Fact]:
    """Return the settings of an optimiser, by group and name."""
    return [
        ((n, part), _fact(value))
        for n, group in enumerate(optimizer.param_groups)
        for part, value in group.items()
        if part != "params"
    ]


class Setting(tuple[Any, ...]):  # noqa: SLOT001 - a tuple has no slots of others
    """The name of an optimiser's setting.

    Attributes:
        optimizer: whose setting it is.
    """

    optimizer: Any

    def __new__(cls, name: tuple[Any, ...], optimizer: Any) -> Setting:
        made = super().__new__(cls, name)
        made.optimizer = optimizer
        return made


def _fact(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_fact, value))
    return (type(value), value) if type(value) in SIMPLE else id(value)


def seen_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each thing that a function of the user's refers to."""
    if isinstance(function, functools.partial):
        yield from (("function", function.func), ("args", function.args), ("kwargs", function.keywords))
    elif isinstance(function, MethodType):
        yield "self", function.__self__
        yield from seen_by(function.__func__)
    elif isinstance(function, FunctionType) and is_users(function):
        yield from _variables(function)


def is_users(function: FunctionType) -> bool:
    """Return whether a function was written by the user."""
    return owner_of_file(function.__code__.co_filename) is Owner.USER


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults: Mapping[str, Any] = {"defaults": function.__defaults__, **(function.__kwdefaults__ or {})}
    yield from defaults.items()
    for name in global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


_names: dict[int, tuple[CodeType, tuple[str, ...]]] = {}
"""By id of the code, which is kept alive here: a code object's own hash covers all its contents."""


def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of global variables that a function reads, or one within it."""
    found = _names.get(id(code))
    if found is None:
        found = _names[id(code)] = code, _names_in(code)
    return found[1]


def _names_in(code: CodeType) -> tuple[str, ...]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            names.update(_names_in(each))
    return tuple(sorted(names))


def _wrapped(value: Any) -> Any:
    """Return the function that an object calls: a remote one does."""
    return getattr(value, "__dict__", {}).get("__wrapped__")


def is_of_user(kind: type) -> bool:
    """Return whether a class is neither Python's nor one of torch, numpy or this package."""
    module = kind.__module__.partition(".")[0]
    return module not in ("builtins", "torch", "monarch_nb", "numpy")
