"""Plans of operations, without their tensors: the key that identifies each, and the template that ranks fill
in.

Equal keys mean equal results but for data. Floats of pointwise operations aren't in the key: optimisers
change them with every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from monarch_nb._rank.tensor.private import schema_of
from monarch_nb._rank.tensor.protocol import Hole, ScalarHole
from monarch_nb._tensor.metadata import Meta

Output = Meta | int | None
"""One part of a result: a new tensor, one of the inputs, or nothing."""
Template = tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]


@dataclass(slots=True)
class Plan:
    """The plan of an operation, kept for later calls.

    Attributes:
        number: number by which ranks know it.
        op: name of the operation.
        outputs: parts of the result, flat.
        rebuild: assembles the result from these parts; None if there is exactly one, and it is new.
        writes: inputs that are changed in place.
        draws: it draws random numbers.
        is_random: a seed for that goes with each command; else the ranks' own generators give them.
        last: number of the last command of this plan.
        code: the user's code that has made it; None if it wasn't found.
    """

    number: int
    op: str
    outputs: tuple[Output, ...]
    rebuild: Callable[[list[Any]], Any] | None
    writes: tuple[int, ...]
    is_random: bool = False
    last: int = -1
    draws: bool = False
    code: CodeType | None = None


_STATISTICS = ("running_mean", "running_var")
HIDDEN_WRITES = {
    torch.ops.aten.native_batch_norm.default: _STATISTICS,
    torch.ops.aten.batch_norm_update_stats.default: _STATISTICS,
}
"""Arguments that an operation changes though its schema doesn't declare it."""
IN_PLACE_VIEWS = {
    torch.ops.aten.as_strided_.default: torch.ops.aten.as_strided.default,
    torch.ops.aten.squeeze_.default: torch.ops.aten.squeeze.default,
    torch.ops.aten.squeeze_.dim: torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze_.dims: torch.ops.aten.squeeze.dims,
    torch.ops.aten.t_.default: torch.ops.aten.t.default,
    torch.ops.aten.transpose_.default: torch.ops.aten.transpose.int,
    torch.ops.aten.unsqueeze_.default: torch.ops.aten.unsqueeze.default,
}
"""For operations that change a tensor's shape in place: the operations that make a view of that shape."""
_travels: dict[Any, bool] = {}


def floats_travel(func: Any) -> bool:
    """Return whether the floats of an operation are sent with each command instead of in its plan."""
    found = _travels.get(func)
    if found is None:
        tags = getattr(func, "tags", ())
        found = _travels[func] = torch.Tag.pointwise in tags or "_foreach_" in str(func)
    return found


only_numbers: set[int] = set()
"""Ids of the operations that were done whose arguments are one tensor, then integers and lists of these:
views, mostly. Their arguments identify the plan by themselves, without their types.
"""
_NUMBERS = ("int", "List[int]", "bool", "Optional[int]")


def takes_only_numbers(func: Any) -> bool:
    """Return whether an operation belongs to `only_numbers`."""
    kinds = [str(a.type) for a in schema_of(func).arguments]
    return kinds[:1] == ["Tensor"] and all(each in _NUMBERS for each in kinds[1:])


class TemplateMaker:
    """The maker of the template of a call: `Hole` for each tensor, `ScalarHole` for each float sent with the
    command, in the order of `gather`.
    """

    def __init__(self, is_tensor: Callable[[Any], bool], travels: bool) -> None:
        self._is_tensor = is_tensor
        self._travels = travels
        self.num_tensors = self.num_scalars = 0

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Template:
        """Return the template of arguments."""
        return tuple(map(self._one, args)), tuple((name, self._one(value)) for name, value in kwargs.items())

    def _one(self, value: Any) -> Any:
        if self._is_tensor(value):
            self.num_tensors += 1
            return Hole(self.num_tensors - 1)
        if type(value) is float and self._travels:
            self.num_scalars += 1
            return ScalarHole(self.num_scalars - 1)
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(map(self._one, value))
        return value


def written_names(func: Any) -> frozenset[str]:
    """Return the arguments that an operation changes."""
    arguments = schema_of(func).arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return frozenset([*written, *HIDDEN_WRITES.get(func, ())])


def positions(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_tensor: Callable[[Any], bool]
) -> dict[str, tuple[int, ...]]:
    """Return the indices of the gathered tensors for each argument, by its name."""
    found: dict[str, tuple[int, ...]] = {}
    number = 0
    names = [a.name for a in schema_of(func).arguments]
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        each = value if isinstance(value, (list, tuple)) else [value]
        num = sum(map(is_tensor, each))
        found[name] = tuple(range(number, number + num))
        number += num
    return found
