"""Changes of a module since its layers were sent to the ranks, which have a copy of it.

Values of parameters and buffers are the ranks' own. What else a program changes has to be sent again
(attributes, parameters that were given other memory), or can't be (layers, dtypes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from monarch_nb._parallel.contents import compared, contents
from monarch_nb._parallel.variables import Variables
from monarch_nb._rank.tensor.private import num_hooks, own_buffers, own_layers, own_parameters
from monarch_nb._tensor.elsewhere import Elsewhere
from monarch_nb._tensor.reach import OF_ALL_LAYERS, SIMPLE
from monarch_nb._tensor.tensor import Tensor
from monarch_nb.exceptions import MeshUsageError

_OF_ALL_LAYERS = OF_ALL_LAYERS | {"forward"}


class Watched:
    """A module of the mesh, and what it was like when it was last sent.

    Args:
        made: the module.
        elsewhere: the ranks' modules.
    """

    def __init__(self, made: nn.Module, elsewhere: Elsewhere) -> None:
        self._made = made
        self.layers = dict(made.named_modules())
        self._within = self._layers_within()
        self._first, self._tied = _places(self.layers.values())
        self._num_hooks = [*map(num_hooks, self.layers.values())]
        self._attributes = [*map(_attributes, self.layers.values())]
        self._seen = [dict(vars(layer)) for layer in self.layers.values()]
        self._metas: list[tuple[str, Any]] = []
        self._handles: list[Any] = []
        self.buffers = [
            (layer, name)
            for layer in self.layers.values()
            for name, each in own_buffers(layer).items()
            if each is not None
        ]
        """The module's buffers: each by its layer and its name there."""
        self._of_buffers: list[Any] = []
        self.numbers: dict[int, dict[str, Any]] = {}
        """What the last change was, of each layer by number, if it was nothing but numbers and strings."""
        self._changed: set[int] = set()
        """Layers whose attributes aren't those that they were made with, by number."""
        self._held = self._held_now()
        self._variables = Variables(self.layers.values(), elsewhere)
        self.was_placed()

    def was_placed(self) -> None:
        """Note where the module's parameters are: they were put on the mesh."""
        named: Any = self._made.named_parameters()
        self._metas, self._handles = [(name, each.mesh_meta) for name, each in named], []

    def hooked(self) -> str:
        """Return the first layer that has got hooks since: they are of this program, so its layers have to
        run here. The module's own are called around its forward.
        """
        pairs = zip(self.layers.items(), self._num_hooks, strict=True)
        return next((path for (path, layer), num in pairs if path and num_hooks(layer) > num), "")

    def parameters(self) -> list[Any]:
        """Return the module's parameters. A look at what is known takes a tenth of a walk through layers.

        Raises:
            MeshUsageError: if layers are other ones than the ranks have; it says what to type.
        """
        found = [own_parameters(layer).get(name) for layer, name in self._first]
        are_tied = all(own_parameters(layer).get(name) is found[number] for layer, name, number in self._tied)
        if self._layers_within() != self._within or not are_tied or any(each is None for each in found):
            raise MeshUsageError(
                "layers of this module were added, replaced or taken out since parallelize, and the ranks "
                "don't have them: change the plain module, and monarch_nb.parallelize(module, mesh) again"
            )
        return found

    def _layers_within(self) -> list[tuple[Any, ...]]:
        """Return the layers that each layer has, and its number of parameters."""
        layers = self.layers.values()
        return [(*own_layers(each).values(), len(own_parameters(each))) for each in layers]

    def check(self, parameters: Sequence[Any]) -> None:
        """Check that parameters are those that the ranks have.

        Raises:
            MeshUsageError: if some were replaced, or have another dtype; it says what to type.
        """
        for (name, meta), each in zip(self._metas, parameters, strict=True):
            now = getattr(each, "mesh_meta", None)
            if now is meta:
                continue
            if now is not None and now.dtype != meta.dtype:
                raise MeshUsageError(
                    f"{name} is {now.dtype} now, and {meta.dtype} on the ranks: convert the module before, "
                    f"monarch_nb.parallelize(module.to({now.dtype}), mesh)"
                )
            what = "another tensor" if now is None else repr(now)
            raise MeshUsageError(
                f"{name} was replaced by {what}, and is {meta!r} on the ranks: "
                f'with torch.no_grad(): model.get_parameter("{name}").copy_(values) changes it'
            )

    def was_changed(self, parameters: Sequence[Any]) -> bool:
        """Say whether the ranks need the module once more: attributes of its layers are other ones, or
        variables that these read, or parameters have other memory. If it's only numbers and strings,
        `numbers` has these.
        """
        is_more = self._variables.were_changed()
        changed: dict[int, dict[str, Any]] = {}
        for number, layer in enumerate(self.layers.values()):
            if _is_same(vars(layer), self._seen[number]):  # a look at a whole layer takes less than its parts
                continue
            self._seen[number] = dict(vars(layer))
            found, before = _attributes(layer), self._attributes[number]
            if found != before:
                self._attributes[number] = found
                self._changed.add(number)
                simple = _numbers_that_differ(before, found)
                is_more = is_more or simple is None
                changed[number] = simple or {}
        for held, before, numbers in self._held:
            if contents(held) != before:
                is_more = True
                self._changed |= numbers
        if is_more or changed:
            self._held = self._held_now()
        if self._handles:
            are_same = [each.mesh_handle for each in parameters] == self._handles
            is_more = is_more or not are_same or self._buffer_handles() != self._of_buffers
        self.numbers = {} if is_more else changed
        return is_more or bool(changed)

    def _held_now(self) -> list[tuple[Any, Any, set[int]]]:
        """Return what attributes hold that can change in place, as lists and configurations do: each with
        its contents, and the layers that hold it.
        """
        found: dict[int, tuple[Any, Any, set[int]]] = {}
        for number, layer in enumerate(self.layers.values()):
            for name, value in vars(layer).items():
                if not is_own(name, value):
                    continue
                if id(value) not in found and (inside := contents(value)) is not None:
                    found[id(value)] = value, inside, set()
                if id(value) in found:
                    found[id(value)][2].add(number)
        return [*found.values()]

    def ran_here(self) -> None:
        """Note that a forward ran in this program: what it changed of the module isn't a change for ranks."""
        self._seen = [dict(vars(layer)) for layer in self.layers.values()]
        self._attributes = [*map(_attributes, self.layers.values())]
        self._held = self._held_now()
        self._variables.look()

    def was_sent(self, parameters: Sequence[Any]) -> None:
        """Note that the ranks have the module as it is."""
        self._handles = [each.mesh_handle for each in parameters]
        self.has_buffers()

    def has_buffers(self) -> None:
        """Note that the module's buffers are those of the ranks."""
        self._of_buffers = self._buffer_handles()

    def _buffer_handles(self) -> list[Any]:
        return [getattr(own_buffers(layer)[name], "mesh_handle", None) for layer, name in self.buffers]

    def change(self, like: nn.Module) -> None:
        """Give the layers of a copy the attributes that were changed."""
        for layer, values in self._changed_in(like):
            vars(layer).update(values)

    @contextmanager
    def as_now(self, like: nn.Module) -> Iterator[None]:
        """Let a copy be as the module is now, in a block: its attributes, what is in training, and which
        parameters want gradients.
        """
        pairs = [*zip(like.modules(), self.layers.values(), strict=True)]
        before = [(layer, dict(vars(layer))) for layer, _ in pairs]
        wanted = [(each, each.requires_grad) for each in like.parameters()]
        try:
            self.change(like)
            for layer, mine in pairs:
                layer.training = mine.training
            for each, mine in zip(like.parameters(), self._made.parameters(), strict=True):
                each.requires_grad_(mine.requires_grad)
            yield
        finally:
            for layer, values in before:
                vars(layer).clear()
                vars(layer).update(values)
            for each, wants in wanted:
                each.requires_grad_(wants)
            self._variables.look()  # a forward may count in one

    def _changed_in(self, like: nn.Module) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
        pairs = [*zip(like.modules(), self.layers.values(), strict=True)]
        for number in self._changed:
            layer, mine = pairs[number]
            yield layer, {name: value for name, value in vars(mine).items() if is_own(name, value)}


def _places(
    layers: Iterable[nn.Module],
) -> tuple[list[tuple[nn.Module, str]], list[tuple[nn.Module, str, int]]]:
    """Return where parameters are, in the order of `named_parameters`; and where else, by number."""
    numbers: dict[int, int] = {}
    first: list[tuple[nn.Module, str]] = []
    tied: list[tuple[nn.Module, str, int]] = []
    for layer in layers:
        for name, each in own_parameters(layer).items():
            if each is None:
                continue
            if id(each) in numbers:
                tied.append((layer, name, numbers[id(each)]))
                continue
            numbers[id(each)] = len(first)
            first.append((layer, name))
    return first, tied


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        return one == other
    except Exception:  # an attribute that can't be compared, such as an array, is another one
        return False


def _attributes(layer: nn.Module) -> list[Any]:
    """Return a layer's attributes, to be compared."""
    return [(name, compared(value)) for name, value in vars(layer).items() if is_own(name, value)]


def _numbers_that_differ(before: list[Any], now: list[Any]) -> dict[str, Any] | None:
    """Return the attributes that are other numbers or strings; None if others are other ones, too."""
    known = dict(before)
    if known.keys() != dict(now).keys():
        return None
    changed = {name: value for name, value in now if value != known[name]}
    simple = all(type(each) in SIMPLE for name, value in changed.items() for each in (value, known[name]))
    return changed if simple else None


def is_own(name: str, value: Any) -> bool:
    """Say whether an attribute is the layer's own, and not what all layers have: tensors of a mesh aren't."""
    return name not in _OF_ALL_LAYERS and not issubclass(type(value), (Tensor, nn.Module))
