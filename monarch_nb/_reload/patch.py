"""Gives new code to living functions and classes: the old objects stay, so that instances, imports by name,
bound methods and pickles remain valid.

A class gets the attributes of its new definition, and loses those that the definition no longer names. What
the definition says as before, and isn't a function, stays as it is now: a counter of a class goes on
counting. A function gets code, defaults and closure.
"""

from __future__ import annotations

import ast
import enum
import functools
from collections.abc import Iterator
from contextlib import suppress
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, UnionType
from typing import Any, TypeGuard, TypeVar

from monarch_nb._reload.statements import Definition, definitions, difference

T = TypeVar("T")

_NEVER_SET = frozenset(
    (
        "__dict__",
        "__weakref__",
        "__module__",
        "__qualname__",
        "__firstlineno__",
        "__static_attributes__",
        "__slots__",
        "_abc_impl",
    )
)
MAX_ADAPTED = 10_000
"""Maximum number of members of a new list or dict that are examined."""
_SLOT_TYPES = (MemberDescriptorType, GetSetDescriptorType)


def is_a(value: Any, kind: type[T] | UnionType | tuple[type, ...]) -> TypeGuard[T]:
    """Say whether a value's type is `kind`: unlike `isinstance` it asks nothing of the value itself, which
    may be a proxy that raises.
    """
    return issubclass(type(value), kind)


class CannotPatch(Exception):
    """The error of an object that can't take on new code; its text says why."""


class Same:
    """The mapping of new objects to the old ones that stay in their place, for all of one reload."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Any, Any]] = {}
        """New and old objects by the new one's id, which is kept alive so that the id stays unique."""

    def add(self, new: Any, old: Any) -> None:
        """Record that `old` stays in place of `new`."""
        self._by_id[id(new)] = (new, old)

    def __contains__(self, new: object) -> bool:
        return id(new) in self._by_id

    def of(self, new: Any) -> Any:
        """Return the old object that stays for a new one; the new one itself, if there is none."""
        return self._by_id[id(new)][1] if id(new) in self._by_id else new

    def adapt(self, value: Any) -> None:
        """Make a new object refer to the old classes: a subclass, an instance, functions, and those in a list
        or dict.
        """
        if type(value) in (list, tuple, set, frozenset):
            members = list(value)
        else:
            members = list(value.values()) if type(value) is dict else [value]
        for each in members[:MAX_ADAPTED]:
            if is_a(each, type):
                self._adapt_class(each)
            elif type(each) in self:
                with suppress(TypeError, AttributeError):
                    each.__class__ = self.of(type(each))
            for function in functions_of(each):
                _point_to(function, self)

    def _adapt_class(self, cls: type) -> None:
        bases = tuple(map(self.of, cls.__bases__))
        if bases != cls.__bases__:
            with suppress(TypeError):
                cls.__bases__ = bases


def patch(old: Any, new: Any, old_node: ast.AST | None, new_node: ast.AST | None, same: Same) -> None:
    """Give `old` the code of `new`.

    Args:
        old_node, new_node: of a class, its definitions.
        same: is told that `old` stays for `new`.

    Raises:
        CannotPatch: if that isn't possible: `old` is as before.
    """
    if is_a(old, type) and is_a(new, type):
        _patch_class(old, new, old_node, new_node, same)
    elif is_a(old, FunctionType) and is_a(new, FunctionType):
        _patch_function(old, new, same)
    elif type(old) is type(new) and is_a(_wrapped(old), FunctionType) and is_a(_wrapped(new), FunctionType):
        _patch_wrapper(old, new, same)
    else:
        raise CannotPatch("it is neither a function nor a class in both versions")
    same.add(new, old)


def is_patchable(value: Any) -> bool:
    """Say whether a value has code that can be replaced in place."""
    return is_a(value, type | FunctionType) or is_a(_wrapped(value), FunctionType)


def _wrapped(value: Any) -> Any:
    """Return the function that a wrapper which isn't a function itself says it wraps."""
    return None if is_a(value, type) else _attributes(value).get("__wrapped__")


def _attributes(value: Any) -> dict[str, Any]:
    """Return the entries of a value's own dictionary, without asking the value; empty if it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception:
        return {}
    return found if type(found) is dict else {}


# --- functions


def _patch_function(old: FunctionType, new: FunctionType, same: Same) -> None:
    """Give `old` the code of `new`."""
    if old.__code__.co_freevars != new.__code__.co_freevars:
        raise CannotPatch("it uses other variables of the function around it")
    for old_cell, new_cell in zip(old.__closure__ or (), new.__closure__ or (), strict=True):
        _patch_cell(old_cell, new_cell, same)
    old.__code__ = new.__code__
    old.__defaults__ = None if new.__defaults__ is None else tuple(map(same.of, new.__defaults__))
    old.__kwdefaults__ = new.__kwdefaults__
    old.__doc__ = new.__doc__
    _copy_annotations(old, new)
    for name in [n for n in vars(old) if n not in vars(new)]:
        del old.__dict__[name]
    for name, value in vars(new).items():
        before = vars(old).get(name)
        if name == "__wrapped__" and is_a(before, FunctionType) and is_a(value, FunctionType):
            if before.__code__ is not value.__code__:
                _patch_or_take(before, value, same)
        else:
            setattr(old, name, value)


def _copy_annotations(old: Any, new: Any) -> None:
    if hasattr(
        new, "__annotate__"
    ):  # since Python 3.14 they're computed when they are asked for, which may raise
        old.__annotate__ = new.__annotate__
    else:
        old.__annotations__ = new.__annotations__


def _patch_cell(old_cell: Any, new_cell: Any, same: Same) -> None:
    """Give a closure's variable the new closure's value; functions that a decorator wraps stay the same."""
    try:
        new = new_cell.cell_contents
    except ValueError:  # not bound yet
        return
    try:
        old = old_cell.cell_contents
    except ValueError:
        old = None
    if new in same:
        old_cell.cell_contents = same.of(new)
    elif old is new:
        return
    elif is_a(old, FunctionType) and is_a(new, FunctionType) and old.__qualname__ == new.__qualname__:
        if not _patch_or_take(old, new, same):
            old_cell.cell_contents = new
    else:
        old_cell.cell_contents = new


def _patch_or_take(old: FunctionType, new: FunctionType, same: Same) -> bool:
    """Patch a function; False if it can't be."""
    try:
        _patch_function(old, new, same)
    except CannotPatch:
        return False
    return True


def _patch_wrapper(old: Any, new: Any, same: Same) -> None:
    """Patch what is wrapped by an object that calls it: `functools.lru_cache`, for one."""
    if is_a(old, functools._lru_cache_wrapper):
        if old.cache_parameters() != new.cache_parameters():
            raise CannotPatch("its cache has another size")
        _patch_function(_wrapped(old), _wrapped(new), same)
        old.cache_clear()
        return
    raise CannotPatch(f"a {type(old).__name__} calls it")


# --- classes


def _patch_class(
    old: type, new: type, old_node: ast.AST | None, new_node: ast.AST | None, same: Same
) -> None:
    _check_layout(old, new)
    bases = tuple(map(same.of, new.__bases__))
    if old.__bases__ != bases:
        try:
            old.__bases__ = bases
        except TypeError as error:
            raise CannotPatch(f"its bases can't be changed: {error}") from None
    kept, gone, nodes = _body_changes(old_node, new_node)
    same.add(new, old)
    for name, value in list(vars(new).items()):
        if name in _NEVER_SET or is_a(value, _SLOT_TYPES):
            continue
        _set_attribute(old, name, value, name in kept, same, nodes.get(name, (None, None)))
    for name in gone:
        if name in vars(old) and name not in vars(new) and name not in _NEVER_SET:
            type.__delattr__(old, name)


def _check_layout(old: type, new: type) -> None:
    """Raise if instances of the old class can't be instances of the new one."""
    if issubclass(old, enum.Enum):
        raise CannotPatch("members of an enum stay what they are")
    if type(old) is not type(new):
        raise CannotPatch("it has another metaclass")
    if old.__dict__.get("__slots__") != new.__dict__.get("__slots__"):
        raise CannotPatch("it has other slots")
    if getattr(old, "_fields", None) != getattr(new, "_fields", None) and issubclass(old, tuple):
        raise CannotPatch("a tuple has other fields")
    if (old.__basicsize__, old.__itemsize__) != (new.__basicsize__, new.__itemsize__):
        raise CannotPatch("its instances have another layout")


def _body_changes(
    old_node: ast.AST | None, new_node: ast.AST | None
) -> tuple[set[str], tuple[str, ...], dict[str, tuple[Definition | None, Definition]]]:
    """Return which names of a class' body are bound as before, which are gone, and its nested definitions
    in both versions.
    """
    if not isinstance(old_node, ast.ClassDef) or not isinstance(new_node, ast.ClassDef):
        return set(), (), {}
    found = difference(old_node.body, new_node.body)
    whole = difference([], new_node.body)
    before = definitions(old_node.body)
    nodes = {name: (before.get(name), node) for name, node in definitions(new_node.body).items()}
    return set(whole.bound) - set(found.bound), found.gone, nodes


def _set_attribute(
    old: type,
    name: str,
    new_value: Any,
    is_kept: bool,
    same: Same,
    nodes: tuple[Definition | None, Definition | None],
) -> None:
    """Give a class one attribute of its new definition."""
    if name not in vars(old):
        _point_to(new_value, same)
        type.__setattr__(old, name, new_value)
        return
    old_value = vars(old)[name]
    functions, new_functions = list(functions_of(old_value)), list(functions_of(new_value))
    if is_a(old_value, type) and is_a(new_value, type) and old_value.__qualname__ == new_value.__qualname__:
        try:
            _patch_class(old_value, new_value, *nodes, same)
            return
        except CannotPatch:
            pass
    elif is_a(old_value, FunctionType | staticmethod | classmethod) and type(old_value) is type(new_value):
        if functions and new_functions and _patch_or_take(functions[0], new_functions[0], same):
            return
    elif is_kept and not new_functions:
        return
    _point_to(new_value, same)
    type.__setattr__(old, name, same.of(new_value))


def functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield the functions that an attribute of a class holds: a method, what `property` or `@endpoint`
    wrap.
    """
    if is_a(value, FunctionType):
        yield value
    elif is_a(value, staticmethod | classmethod | MethodType):
        yield from functions_of(value.__func__)
    elif is_a(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from functions_of(part)
    elif is_a(value, functools.cached_property | functools.partialmethod):
        yield from functions_of(value.func)
    else:
        for name in ("__wrapped__", "method", "__func__"):  # `method`: our own @endpoint
            found = _attributes(value).get(name)
            if is_a(found, FunctionType):
                yield found


def closure_of(function: FunctionType) -> Iterator[tuple[CellType, Any]]:
    """Yield the variables of a function's closure that are bound, each with what it holds."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not bound yet
            yield cell, cell.cell_contents


def _point_to(value: Any, same: Same) -> None:
    """Have new functions mean the old class by `__class__`: `super()` looks it up there."""
    seen: set[int] = set()
    remaining = list(functions_of(value))
    while remaining:
        function = remaining.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for cell, held in closure_of(function):
            if held in same:
                cell.cell_contents = same.of(held)
            elif is_a(held, FunctionType):
                remaining.append(held)
        if is_a(function.__dict__.get("__wrapped__"), FunctionType):
            remaining.append(function.__dict__["__wrapped__"])
