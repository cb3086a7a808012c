"""Values of the mesh that a recorded call reads: what is compared of them, and where they are in its
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monarch_nb._tensor.returned import Fate, calls_directly, fate_of

MOST_NUMBERS = 16
"""Of so many numbers at most a value may decide what a function does."""
_SINGLE = (bool, int, type(None))
"""Types of which equal values may be one object."""


def answer_of(values: Sequence[Any]) -> Any:
    """Return what came from the ranks as something that can be compared; None if that's too much.

    Example:
        >>> answer_of([torch.tensor([1.0, -0.0]), None])
        (('torch.float32', (2,), '[1.0, -0.0]'), 'None')
        >>> answer_of([torch.zeros(1000)]) is None
        True
    """
    found: list[Any] = []
    for each in values:
        if not isinstance(each, torch.Tensor):
            if each is not None and type(each) not in (bool, int, float, str):
                return None
            found.append(repr(each))
        elif each.numel() > MOST_NUMBERS:
            return None
        else:
            found.append((str(each.dtype), tuple(each.shape), repr(each.tolist())))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was read and that the function can only return.

    Attributes:
        number: of the read.
        leaves: the value, flat.
        fate: what the function does with it.
        site: the code and the offset of the call that reads.
    """

    number: int
    leaves: tuple[Any, ...]
    fate: Fate
    site: tuple[CodeType, int]


def given_by(number: int, value: Any, frame: Any, caller: CodeType | None) -> Given | None:
    """Return a value that a method has read, if the compiled function can only return it; else None.

    Args:
        number: of the read.
        frame: of the method.
        caller: code that calls the compiled function; other functions may lie between.
    """
    outer = frame.f_back
    if outer is None or outer.f_back is None:
        return None
    site = outer.f_code, outer.f_lasti
    fates = [fate_of(*site, frame.f_code.co_name)]
    while Fate.USED not in fates and outer.f_back.f_code is not caller:
        inner, outer = outer, outer.f_back
        if outer.f_back is None or not calls_directly(outer, inner.f_code):
            return None
        fates.append(fate_of(outer.f_code, outer.f_lasti, ""))
    if Fate.USED in fates:
        return None
    fate = Fate.DROPPED if Fate.DROPPED in fates else Fate.RETURNED
    return Given(number, tuple(pytree.tree_leaves(value)), fate, site)


class Unclear(Exception):
    """It can't be said which results are values that were read."""


def places_of(given: Sequence[Given], results: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Return for each result that was read: the number of the read, and which of its flat values it is.

    Raises:
        Unclear: if a number that was read may be another one that is the same object.

    Example:
        >>> code = (lambda: None).__code__
        >>> def read(number, *leaves):
        ...     return Given(number, leaves, Fate.RETURNED, (code, number))
        >>> loss, norm = float("3"), float("4")
        >>> places_of([read(0, loss), read(1, 7), read(2, norm)], ["a", loss, 7, loss, norm])
        {1: (0, 0), 3: (0, 0), 2: (1, 0), 4: (2, 0)}
        >>> places_of([read(0, 7)], [7, 7])
        Traceback (most recent call last):
        monarch_nb._tensor.reads.Unclear
    """
    found: dict[int, tuple[int, int]] = {}
    sites = [each.site for each in given]
    for each in given:
        starts = list(_starts(each.leaves, results))
        if any(type(leaf) in _SINGLE for leaf in each.leaves):
            is_known = each.fate is Fate.RETURNED and sites.count(each.site) == 1
            if len(starts) != 1 or not is_known:
                raise Unclear
        for start in starts:
            for n in range(len(each.leaves)):
                if found.setdefault(start + n, (each.number, n)) != (each.number, n):
                    raise Unclear
    return found


def _starts(leaves: Sequence[Any], results: Sequence[Any]) -> Iterator[int]:
    if not leaves:
        raise Unclear
    for start in range(len(results) - len(leaves) + 1):
        if all(a is b for a, b in zip(leaves, results[start : start + len(leaves)], strict=True)):
            yield start


def to_float(plain: torch.Tensor) -> float:
    """Return what `float(x)` is."""
    return float(plain.item())


def to_int(plain: torch.Tensor) -> int:
    """Return what `int(x)` is."""
    return int(plain.item())


def to_itself(plain: torch.Tensor) -> torch.Tensor:
    """Return what `x.full()` is."""
    return plain


Convert = Callable[[torch.Tensor], Any]
