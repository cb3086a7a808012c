"""Follows the operations of a forward without values, layer by layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from monarch_nb._parallel.attributes import Left
from monarch_nb._parallel.dry.outcome import CantFollow
from monarch_nb._parallel.dry.values import is_dry
from monarch_nb._parallel.numbers import as_in_training
from monarch_nb._parallel.rules import is_view
from monarch_nb._rank.tensor.inside import is_constant
from monarch_nb._tensor.metadata import Grid
from monarch_nb._tensor.propagation import Propagation


@dataclass(slots=True)
class Step:
    """One operation of a dry run, on one rank's part."""

    func: Any
    scalars: tuple[Any, ...]
    sizes: tuple[tuple[int, ...], ...]


class Shared:
    """The shared state of the dry runs of one module.

    Args:
        module: the user's module; only the shapes of its parameters are used.
        num_ranks: number of ranks over which a batch is split.
    """

    def __init__(self, module: nn.Module, num_ranks: int) -> None:
        self.module, self.num_ranks = module, num_ranks
        self.grid = Grid(None, (num_ranks,), ("data",), range(num_ranks), "cpu")
        self.propagation = Propagation(is_dry)
        self.paths = {layer: path for path, layer in module.named_modules()}
        self.outcomes: dict[Any, Any] = {}
        self.fine: dict[str, list[int | None]] = {}
        """Layers that rules can't follow, but that handle each row separately, as a test with values has
        shown: how their results are split.
        """


class Following(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that follows operations, and knows the layer in which each runs."""

    def __init__(self, shared: Shared, whole: Sequence[str], rows: int) -> None:
        super().__init__()
        self._shared, self._whole, self._rows = shared, frozenset(whole), rows
        self._layers: list[str] = []
        self._depth = 0
        """Number of enclosing layers that run on the whole batch."""
        self._is_unseen = False
        self.parameters: dict[str, torch.Tensor] = {}

    @property
    def path(self) -> str:
        """The path of the layer whose forward runs now."""
        return self._layers[-1] if self._layers else ""

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the operations of a `with` block."""
        with ExitStack() as stack:
            for layer, path in self._shared.paths.items():
                hooks = (
                    layer.register_forward_pre_hook(self._entering(path), with_kwargs=True, prepend=True),
                    layer.register_forward_hook(self._leaving(path), always_call=True),
                )
                for each in hooks:
                    stack.callback(each.remove)
            stack.enter_context(self._around())
            stack.enter_context(self)
            yield

    @contextmanager
    def _around(self) -> Iterator[None]:
        with _quiet():
            yield

    def _entering(self, path: str) -> Callable[..., Any]:
        def enter(_layer: Any, args: Any, kwargs: Any) -> Any:
            self._layers.append(path)
            self.enter(path, args, kwargs)
            if path not in self._whole:
                return None
            self._depth += 1
            for each in pytree.tree_leaves((args, kwargs)):
                if not isinstance(each, torch.Tensor) and not is_constant(each):
                    raise CantFollow(
                        f"{path or 'it'} mixes rows of the batch, and gets a {type(each).__name__}, which it "
                        "may change"
                    )
            return args if self._depth > 1 else self._unseen(self.gather, (args, kwargs))

        def enter_all(layer: Any, args: Any, kwargs: Any) -> Any:
            found = enter(layer, args, kwargs)
            return (args, kwargs) if found is None or found is args else found

        return enter_all

    def _leaving(self, path: str) -> Callable[..., Any]:
        def leave(_layer: Any, _args: Any, output: Any) -> Any:
            if self._layers:
                self._layers.pop()
            output = self.leave(path, output)
            if path not in self._whole:
                return output
            self._depth -= 1
            return output if self._depth else self._unseen(self.own, output)

        return leave

    def _unseen(self, function: Callable[..., Any], values: Any) -> Any:
        """Apply a function to values without following it, because it isn't an operation of the module."""
        self._is_unseen = True
        try:
            return pytree.tree_map(function, values)
        finally:
            self._is_unseen = False

    def state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return the module's parameters and buffers as tensors of this run."""
        made: dict[int, torch.Tensor] = {}
        for each in module.parameters():
            made[id(each)] = self.value(each).requires_grad_(each.requires_grad)
        for each in module.buffers():
            made[id(each)] = self.value(each)
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
        state = {name: made[id(each)] for name, each in named}
        self.parameters = {name: made[id(each)] for name, each in module.named_parameters()}
        return state

    def name_of(self, value: Any) -> str:
        """Return the name of a parameter, or of the parameter that a view belongs to; "" for other values."""
        for name, each in self.parameters.items():
            if value is each or (value._is_view() and value._base is each):
                return name
        return ""

    # the differences

    def left(self, attributes: Left, buffers: Sequence[str], state: Mapping[str, torch.Tensor]) -> None:
        """Handle what the forward has set: attributes of layers, and buffers; the base class does nothing."""

    def enter(self, path: str, args: Any, kwargs: Any) -> None:
        """Handle the start of a layer's forward; the base class does nothing."""

    def leave(self, path: str, output: Any) -> Any:
        """Handle the end of a layer's forward, and return its output; the base class returns it unchanged."""
        return output

    def value(self, plain: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def given(self, value: Any) -> Any:
        raise NotImplementedError

    def gather(self, value: Any) -> Any:
        raise NotImplementedError

    def own(self, value: Any) -> Any:
        raise NotImplementedError

    def _is_batch(self, value: Any, rows: int) -> bool:
        return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == rows


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's log about fake tensors: this package reports the operations that they don't support."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        with as_in_training():
            yield
    finally:
        logger.disabled = before


def is_bookkeeping(func: Any) -> bool:
    return str(func).startswith(("aten.detach", "aten.clone", "prim."))


def is_same(one: Any, other: Any) -> bool:
    """Say whether two operations do the same: how `reshape` is done depends on strides."""
    return one is other or (is_view(one) and is_view(other))


def scalars_of(args: Any, kwargs: Any) -> tuple[Any, ...]:
    return tuple(
        x
        for x in pytree.tree_leaves((args, kwargs))
        if isinstance(x, (int, float)) and not isinstance(x, bool)
    )
