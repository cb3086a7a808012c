"""Variables and attributes that functions, classes and objects of the user's refer to."""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from monarch_nb._frames.owner import Owner, owner_of_file

PROGRAM = "__main__"
_OTHERS = frozenset(
    {"builtins", "torch", "monarch_nb", "numpy", "logging", "threading", "asyncio", "multiprocessing"}
)
_NO_DATA = (FunctionType, staticmethod, classmethod, property, MemberDescriptorType)


def seen_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each thing that a function refers to."""
    if isinstance(function, functools.partial):
        yield from (("function", function.func), ("args", function.args), ("kwargs", function.keywords))
    elif isinstance(function, MethodType):
        yield from (("self", function.__self__), ("function", function.__func__))
    elif isinstance(function, FunctionType):
        yield from _variables(function)


def is_users(function: FunctionType) -> bool:
    """Return whether what a function refers to may change what it does: the user wrote it."""
    return function.__module__ == PROGRAM or owner_of_file(function.__code__.co_filename) is Owner.USER


def is_of_user(kind: type) -> bool:
    """Return whether a class is neither Python's nor one of torch, numpy or this package, nor one whose
    objects lead to all of the process, as loggers and threads do.
    """
    return kind.__module__.partition(".")[0] not in _OTHERS


@functools.lru_cache(maxsize=4096)
def is_users_class(kind: type) -> bool:
    """Return whether a class was written by the user."""
    name = kind.__module__
    return name == PROGRAM or _is_users_module(sys.modules.get(name))


def _is_users_module(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return type(file) is str and owner_of_file(file) is Owner.USER


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    names, attributes, imported = _names_of(code)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield name, value
        yield from _of_module(value, attributes)
    defaults: Mapping[str, Any] = {"defaults": function.__defaults__, **(function.__kwdefaults__ or {})}
    yield from defaults.items()
    named = names_in(function)
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield named(name), value
        yield from _of_module(value, attributes)
    for name in imported:
        yield from _of_module(sys.modules.get(name), attributes)


class OfFile(str):
    """The full name of what a module of the user's has that can be imported: each process has its own.

    Attributes:
        owner, part: the full name of the module or the class, and the name there.
        is_code: whether it's a function's code.
    """

    __slots__ = ("is_code", "owner", "part")
    owner: str
    part: str
    is_code: bool


@functools.lru_cache(maxsize=4096)
def of_file(owner: str, part: str, *, is_code: bool = False) -> OfFile:
    """Return the full name of what a module, or a class in one, has."""
    made = OfFile(f"{owner}.{part}")
    made.owner, made.part, made.is_code = owner, part, is_code
    return made


def code_of_file(function: FunctionType) -> OfFile | None:
    """Return the full name of a function of a module that can be imported; None for one of the program."""
    if function.__module__ == PROGRAM:
        return None
    return of_file(function.__module__, function.__qualname__, is_code=True)


def _of_module(module: Any, attributes: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a module, if it's the user's, that a function with these attributes may read."""
    if type(module) is not ModuleType or not _is_users_module(module):
        return
    for part in attributes:
        if part in vars(module):
            yield of_file(module.__name__, part), vars(module)[part]


def names_in(owner: Any) -> Callable[[str], str]:
    """Return what names the attributes of a class, or the variables of a function's module."""
    module = owner.__module__
    if module == PROGRAM or module not in sys.modules:
        return str
    full = f"{module}.{owner.__qualname__}" if isinstance(owner, type) else module
    return functools.partial(of_file, full)


Names = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
_names: dict[int, tuple[CodeType, Names]] = {}
"""By id of the code, which is kept alive here: a code object's own hash covers all its contents."""


def _names_of(code: CodeType) -> Names:
    """Return the names of global variables that a function and those within it read, of attributes, and of
    modules that it imports.
    """
    found = _names.get(id(code))
    if found is None:
        codes = [*_codes_in(code)]
        steps = [step for each in codes for step in dis.get_instructions(each)]
        read = {step.argval for step in steps if step.opname in _READ}
        imported = {step.argval for step in steps if step.opname == "IMPORT_NAME"}
        attributes = {name for each in codes for name in each.co_names}
        found = _names[id(code)] = code, (_sorted(read), _sorted(attributes), _sorted(imported))
    return found[1]


_READ = ("LOAD_GLOBAL", "LOAD_NAME")


def _sorted(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes_in(each)


def wrapped_by(value: Any) -> Any:
    """Return the function that an object calls: a remote one does."""
    return getattr(value, "__dict__", {}).get("__wrapped__")


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's attributes, with those that the user's classes have for it; methods aside.

    >>> from types import SimpleNamespace
    >>> attributes_of(SimpleNamespace(size=3, rate=0.1))
    {'size': 3, 'rate': 0.1}
    """
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        for name, slot in _slots_of(kind):
            try:
                found[name] = slot.__get__(value)
            except AttributeError:  # not set
                continue
        if is_users_class(kind):
            found.update(data_of(kind))
    found.update(getattr(value, "__dict__", {}))
    return found


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> tuple[tuple[str, Any], ...]:
    if not is_of_user(kind):
        return ()
    slots = ((k, v) for k, v in vars(kind).items() if type(v) is MemberDescriptorType)
    return tuple(each for each in slots if each[0][:2] != "__")


def data_of(kind: type) -> dict[str, Any]:
    """Return what the body of a class sets, without methods and slots, and what Python has for itself."""
    return {
        name: value for name, value in vars(kind).items() if name[:2] != "__" and type(value) not in _NO_DATA
    }


def methods_of(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of a class: its methods, static ones and getters of properties too, and those that
    decorated ones call.
    """
    for name, value in vars(kind).items():
        function: Any = value.fget if type(value) is property else value
        if type(function) in (staticmethod, classmethod):
            function = function.__func__
        for of, each in ((name, function), (f"{name}.__wrapped__", wrapped_by(function))):
            if type(each) is FunctionType:
                yield of, each


class Held:
    """Something that stands for itself: an object, as long as it lives, or a value that's compared by what it
    says, as a date or a path.
    """

    __slots__ = ("_object", "_value")

    def __init__(self, value: Any) -> None:
        self._object: Any = None
        self._value = value
        compares: Any = type(value).__eq__
        if compares is object.__eq__:
            with suppress(TypeError):  # what can't is kept, so that no other one gets its address
                self._object, self._value = weakref.ref(value), None

    def __eq__(self, other: object) -> bool:
        if type(other) is not Held:
            return False
        if self._object is not None:
            found = self._object()
            return found is not None and other._object is not None and other._object() is found
        return self._value is other._value or _are_equal(self._value, other._value)

    __hash__ = object.__hash__


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return type(other) is type(one) and bool(one == other)
    except Exception:  # they can't be compared
        return False
