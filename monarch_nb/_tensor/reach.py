"""Finds what a function sees besides its arguments: global variables, closures, the object that it belongs
to, modules and optimisers in them. What changes there may change what the function does.
"""

from __future__ import annotations

import functools
import pickle
import random
import weakref
from collections import deque
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from monarch_nb._frames.owner import warn_user
from monarch_nb._rank.tensor import checksums
from monarch_nb._rank.tensor.private import gradient_hooks, own_buffers, own_parameters, version_of
from monarch_nb._tensor.references import (
    Held,
    attributes_of,
    data_of,
    is_of_user,
    is_users,
    is_users_class,
    methods_of,
    names_in,
    seen_by,
    wrapped_by,
)
from monarch_nb._tensor.tensor import Tensor
from monarch_nb._units import size_text

Fact = tuple[tuple[Any, ...], Any]
"""What it is called, as parts of a name, and its value."""
SIMPLE = (int, float, bool, str, complex, type(None), torch.dtype, torch.device)
_SIMPLE = frozenset(SIMPLE)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_COLLECTIONS = (list, tuple, dict, set, frozenset, deque)
DEEPEST = 6
DEEPEST_MODULE = 1
"""How deep a module counts as at most: so its attributes are looked into, wherever it was found."""
MOST_ITEMS = 1000
OF_ALL_LAYERS = frozenset(vars(nn.Module()))


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
        self._seen: dict[int, tuple[Any, ...]] = {}
        self._is_in_module = False
        self.facts: list[Fact] = []
        self.tensors: list[Tensor] = []
        self.optimizers: list[torch.optim.Optimizer] = []

    def add(self, name: tuple[Any, ...], value: Any, depth: int = 0) -> None:
        """Add a value, and what it leads to. Something has to keep it, for it's known by its address."""
        kind = type(value)
        if self._is_in_module and kind is torch.Tensor:  # ranks may have a copy of it
            self.facts.append(((*name, "version"), version_of(value)))
        if kind in _SIMPLE:
            self.facts.append((name, (kind, value)))
        elif id(value) in self._seen:
            self.facts.append((name, self._seen[id(value)]))
        elif depth > DEEPEST:
            self.facts.append((name, Held(value)))
        else:
            self._seen[id(value)] = name
            try:
                self._add_object(name, value, depth)
            except Exception:  # an object that can't be looked into
                self.facts.append((name, Held(value)))

    def _add_object(self, name: tuple[Any, ...], value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self._tensor(name, value)
        elif issubclass(kind, nn.Module):
            self._module(name, value, depth)
        elif issubclass(kind, torch.optim.Optimizer):
            self._optimizer(name, value)
        elif issubclass(kind, (FunctionType, MethodType, functools.partial)):
            self._function(name, value, depth)
        elif issubclass(kind, _COLLECTIONS):
            self._collection(name, value, depth)
        elif issubclass(kind, (np.ndarray, np.generic)):
            self._array(name, np.asanyarray(value))
        elif issubclass(kind, _GENERATORS):
            self.facts.append((name, pickle.dumps(value)))
        elif isinstance(wrapped_by(value), FunctionType):
            self.add((*name, "function"), wrapped_by(value), depth + 1)
        elif issubclass(kind, type) and is_users_class(value):
            self._class(name, value, depth)
        elif is_of_user(kind) and (found := attributes_of(value)):
            for part, each in found.items():
                self.add((*name, part), each, depth + 1)
        else:
            self.facts.append((name, Held(value)))

    def _array(self, name: tuple[Any, ...], array: np.ndarray[Any, Any]) -> None:
        if checksums.is_constant(array):
            self.facts.append((name, Held(array)))
            return
        if array.nbytes > _LARGE:
            _tell_of(name, array)
        self.facts.append((name, checksums.of_array(array)))

    def _function(self, name: tuple[Any, ...], function: Any, depth: int) -> None:
        if isinstance(function, FunctionType):
            if wrapped := wrapped_by(function):
                self.add((*name, "wrapped"), wrapped, depth + 1)
            if not is_users(function):
                self.facts.append((name, Held(function)))
                return
            self._code(name, function)
        for part, each in seen_by(function):
            self.add((*name, part), each, depth + 1)

    def _code(self, name: tuple[Any, ...], function: FunctionType) -> None:
        self.facts.append((name, id(function.__code__)))

    def _collection(self, name: tuple[Any, ...], collection: Any, depth: int) -> None:
        if len(collection) > MOST_ITEMS:
            self.facts.append((name, (Held(collection), checksums.of_collection(collection))))
        elif isinstance(collection, (set, frozenset)):
            self.facts.append((name, frozenset(map(_fact, collection))))
        else:
            items = collection.items() if isinstance(collection, dict) else enumerate(collection)
            self.facts.append((name, len(collection)))
            for part, each in list(items):
                self.add((*name, part), each, depth + 1)

    def _class(self, name: tuple[Any, ...], kind: type, depth: int) -> None:
        named = names_in(kind)
        for part, each in data_of(kind).items():
            self.add((*name, named(part)), each, depth + 1)
        self._methods(name, kind)

    def _methods(self, name: tuple[Any, ...], kind: type) -> None:
        for part, each in methods_of(kind):
            if is_users(each):
                self.add((*name, part), each)

    def _tensor(self, name: tuple[Any, ...], value: torch.Tensor) -> None:
        self.facts.append((name, (id(value), value.requires_grad)))
        if isinstance(value, Tensor):
            self.tensors.append(value)

    def _module(self, name: tuple[Any, ...], module: nn.Module, depth: int) -> None:
        self.facts.append((name, id(module)))
        is_inner, self._is_in_module = self._is_in_module, True
        layers = [*module.named_modules()]
        for kind in dict.fromkeys(kind for _, each in layers for kind in type(each).__mro__):
            if is_users_class(kind):
                self.add((kind.__name__,), kind)
            elif is_of_user(kind):
                self._methods((kind.__name__,), kind)
        depth = min(depth, DEEPEST_MODULE)
        for path, each in layers:
            self._layer((*name, path), each, depth)
        self._is_in_module = is_inner

    def _layer(self, name: tuple[Any, ...], layer: nn.Module, depth: int) -> None:
        """Add a module's own attributes, parameters and buffers."""
        simple: list[Any] = []
        others: list[tuple[str, Any]] = []
        for part, each in vars(layer).items():
            if type(each) in _SIMPLE:
                simple += (part, type(each), each)
            elif part not in OF_ALL_LAYERS or (each and part.endswith("_hooks")):
                others.append((part, each))
        tensors = (*own_parameters(layer).values(), *own_buffers(layer).values())
        trained = tuple(t is not None and t.requires_grad for t in tensors)
        self.facts.append((name, (tuple(simple), tuple(map(id, tensors)), trained)))
        self.tensors += [t for t in tensors if isinstance(t, Tensor)]
        for part, parameter in own_parameters(layer).items():
            for number, hook in enumerate(gradient_hooks(parameter) if parameter is not None else ()):
                self.add((*name, part, number), hook, depth + 1)
        for part, each in others:
            self.add((*name, part), each, depth + 1)

    def _optimizer(self, name: tuple[Any, ...], optimizer: torch.optim.Optimizer) -> None:
        self.facts.append((name, id(optimizer)))
        self.optimizers.append(optimizer)
        for n, group in enumerate(optimizer.param_groups):
            trained = tuple(p.requires_grad for p in group["params"])
            self.facts.append(((*name, n, "params"), (tuple(map(id, group["params"])), trained)))
            self.tensors += [p for p in group["params"] if isinstance(p, Tensor)]
        if optimizer not in self._live:
            state = [(id(p), *map(id, held.values())) for p, held in optimizer.state.items()]
            self.facts.append(((*name, "state"), tuple(state)))
            for part, value in settings_of(optimizer):
                self.facts.append((Setting((*name, *part), optimizer), value))


_LARGE = 4 << 20
"""Bytes of arrays that are compared in a millisecond."""
_told: weakref.WeakValueDictionary[int, np.ndarray[Any, Any]] = weakref.WeakValueDictionary()


def _tell_of(name: tuple[Any, ...], array: np.ndarray[Any, Any]) -> None:
    """Say once of an array what it takes to see its changes."""
    if _told.get(id(array)) is array:
        return
    _told[id(array)] = array
    warn_user(
        f"the array {'.'.join(map(str, name))} of {size_text(array.nbytes)} is compared before each call, "
        "which takes about 0.3 ms for each MB, for it may have changed: array.flags.writeable = False says "
        "that it won't"
    )


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
    return (type(value), value) if type(value) in _SIMPLE else id(value)
