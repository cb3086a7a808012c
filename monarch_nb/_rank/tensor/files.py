"""Checksums of what modules that can be imported have: whether two processes have loaded the same."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

from monarch_nb._rank.tensor.checksums import of_collection

_MOST_WRAPPED = 16
_SIMPLE = (int, float, bool, str, complex, type(None))


def checksums(names: Sequence[tuple[str, str]]) -> list[int | None]:
    """Return a checksum of each function's code, or variable's value, in this process; None where it isn't
    known: a value that's neither a number nor a string, and a module that isn't loaded.

    Args:
        names: the full name of a module or a class, and a name there.

    >>> checksums([("token", "NAME")]) == checksums([("token", "NUMBER")])
    False
    >>> checksums([("token", "not_there"), ("not_loaded", "value")])
    [None, None]
    """
    return [_checksum(_found(f"{owner}.{part}")) for owner, part in names]


def _found(name: str) -> Any:
    """Return what a full name means in this process; a class, which has no checksum, if it means nothing."""
    value: Any
    path = name.split(".")
    for end in range(len(path), 0, -1):
        if (value := sys.modules.get(".".join(path[:end]))) is not None:
            break
    else:
        return CodeType
    if not isinstance(getattr(getattr(value, "__spec__", None), "loader", None), SourceFileLoader):
        return CodeType  # pytest's, for one, makes other code of the same file
    for part in path[end:]:
        value = getattr(value, part, CodeType)
    return value


def _checksum(value: Any) -> int | None:
    value = value.fget if type(value) is property else value
    value = getattr(value, "__func__", value)
    if codes := [*_codes(value)]:
        return zlib.crc32(repr([*map(_parts, codes)]).encode())
    if type(value) in _SIMPLE:
        return zlib.crc32(repr((type(value), value)).encode())
    return of_collection(value) if type(value) in (list, tuple, dict) else None


def _codes(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function, and of those that it wraps, as decorators do; of a remote one, too."""
    for _ in range(_MOST_WRAPPED):
        if type(value) is FunctionType:
            yield value.__code__
        value = getattr(value, "__dict__", {}).get("__wrapped__")


def _parts(constant: Any) -> Any:
    """Return what a code object does; not where it stands, and in an order that's the same everywhere."""
    if isinstance(constant, CodeType):
        flags = constant.co_flags, constant.co_argcount
        others = constant.co_posonlyargcount, constant.co_kwonlyargcount
        names = constant.co_names, constant.co_varnames, constant.co_freevars, constant.co_cellvars
        return constant.co_code, flags, others, names, [*map(_parts, constant.co_consts)]
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return [*map(_parts, constant)] if type(constant) is tuple else constant
