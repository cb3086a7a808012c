"""Updates line numbers of functions whose text is unchanged but has moved in the file: tracebacks and
breakpoints depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from monarch_nb._reload.patch import closure_of, functions_of, is_a


def move_lines(module: ModuleType, code: CodeType) -> int:
    """Give the module's functions the line numbers that `code`, the whole module compiled anew, has for
    them; return how many have moved.
    """
    placed = dict(_code_objects(code))
    num = 0
    for function in _functions(module):
        mine = function.__code__
        found = placed.get(mine.co_qualname)
        if found is None or found.co_filename != mine.co_filename or _lines(found) == _lines(mine):
            continue
        if _runs_alike(found, mine):
            function.__code__ = found
            num += 1
    return num


def _runs_alike(one: CodeType, other: CodeType) -> bool:
    same_names = (one.co_freevars, one.co_names, one.co_varnames) == (
        other.co_freevars,
        other.co_names,
        other.co_varnames,
    )
    return one.co_code == other.co_code and same_names and _constants(one) == _constants(other)


def _lines(code: CodeType) -> tuple[int, bytes]:
    return code.co_firstlineno, code.co_linetable


def _constants(code: CodeType) -> list[Any]:
    """Return constants so that they can be compared: `1 == True`, and code objects differ by their lines."""
    return [(type(c), c.co_code if isinstance(c, CodeType) else repr(c)) for c in code.co_consts]


def _code_objects(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _code_objects(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions that a module has defined at its top level and in its classes, wrapped ones too."""
    for value in list(vars(module).values()):
        if is_a(value, type):
            if value.__module__ == module.__name__:
                yield from _methods(value, set())
        else:
            yield from _unwrapped(value)


def _methods(cls: type, seen: set[type]) -> Iterator[FunctionType]:
    seen.add(cls)
    for value in list(vars(cls).values()):
        if is_a(value, type):
            if value.__module__ == cls.__module__ and value not in seen:
                yield from _methods(value, seen)
        else:
            yield from _unwrapped(value)


def _unwrapped(value: Any) -> Iterator[FunctionType]:
    for function in functions_of(value):
        yield function
        for _, held in closure_of(function):
            if (
                is_a(held, FunctionType)
                and held is not function
                and held.__closure__ is not function.__closure__
            ):
                yield held
