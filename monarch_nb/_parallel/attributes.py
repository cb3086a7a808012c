"""Attributes that a forward sets: those of the module stay as they are in a run without values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from monarch_nb._parallel.changes import is_own
from monarch_nb._rank.tensor.inside import is_constant, tensors_in

_DEPTH, _MANY = 4, 1000
"""How deep objects are looked into, and of how many items."""


@dataclass(slots=True)
class Left:
    """The attributes of a module after a forward.

    Attributes:
        tensors: of attributes that were set or changed, by path.
    """

    tensors: dict[str, list[torch.Tensor]]


@contextmanager
def attributes_kept(layers: Mapping[nn.Module, str]) -> Iterator[Left]:
    """Call layers in a block without changing them; parameters, buffers and layers aside.

    Args:
        layers: with their paths.

    Yields:
        what has been left, complete after the block.
    """
    before = {layer: dict(vars(layer)) for layer in layers}
    inside = {
        layer: {name: [*_saved(each, _DEPTH)] for name, each in values.items() if is_own(name, each)}
        for layer, values in before.items()
    }
    left = Left({})
    try:
        yield left
    finally:
        for layer, path in layers.items():
            for name, value in vars(layer).items():
                is_same = value is before[layer].get(name) and not any(
                    map(_differs, inside[layer].get(name, ()))
                )
                if is_own(name, value) and not is_same:
                    left.tensors[f"{path}.{name}" if path else name] = tensors_in(value)
        for layer in layers:
            for saved in inside[layer].values():
                for each in saved:
                    _restore(each)
            vars(layer).clear()
            vars(layer).update(before[layer])


Saved = tuple[Any, Any]
"""An object that can change, and a copy of what it holds."""


def _saved(value: Any, depth: int) -> Iterator[Saved]:
    """Yield what can change of an attribute: lists, dictionaries, sets and other objects, and those in it."""
    if depth == 0 or is_constant(value) or issubclass(type(value), (torch.Tensor, nn.Module, tuple)):
        return
    inside = _inside(value)
    if inside is None or len(inside) > _MANY:
        return
    yield inside, type(inside)(inside)
    for each in [*(inside.values() if type(inside) is dict else inside)]:
        yield from _saved(each, depth - 1)


def _inside(value: Any) -> Any:
    """Return the collection that a value is, or that of its attributes; None if it has none."""
    if type(value) in (dict, list, set):
        return value
    found = getattr(value, "__dict__", None)
    return found if type(found) is dict else None


def _differs(saved: Saved) -> bool:
    now, before = saved
    if len(now) != len(before):
        return True
    if type(now) is dict:
        return any(before.get(name, saved) is not value for name, value in now.items())
    return now != before if type(now) is set else any(a is not b for a, b in zip(now, before, strict=True))


def _restore(saved: Saved) -> None:
    now, before = saved
    if not _differs(saved):
        return
    now.clear()
    now.extend(before) if type(now) is list else now.update(before)
