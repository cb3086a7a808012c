"""Arguments checked by their annotations before anything is done: who calls is told which one is wrong, and
what it should be. Some would otherwise fail far inside or on another machine, and some not at all.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS, isfunction
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec, TypeVar

from monarch_nb._tracebacks import BadType

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_OR_NONE = " | None"


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) or hasattr(value, "__index__")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or hasattr(value, "__float__")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return what says whether a value is a list of such: a text is none, though it can be iterated over."""

    def are(value: Any) -> bool:
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            return False
        return not isinstance(value, Sequence) or all(map(is_one, value))

    return are


class _Kind(NamedTuple):
    """The values that an annotation stands for."""

    expected: str
    fits: Callable[[Any], bool]


_KINDS = {
    "str": _Kind("a str", _is_text),
    "int": _Kind("an int", _is_whole),
    "float": _Kind("a number", _is_number),
    "Sequence[str]": _Kind("a list of str", _are(_is_text)),
    "Sequence[int]": _Kind("a list of int", _are(_is_whole)),
    "str | Path": _Kind("a path", lambda value: isinstance(value, str | os.PathLike)),
    "Watcher": _Kind("an object with the methods of a Watcher", lambda value: hasattr(value, "ended")),
    "ProfileRequest": _Kind("a ProfileRequest", lambda value: hasattr(value, "options")),
    "Script": _Kind("a Script", lambda value: hasattr(value, "line")),
}
_CALLABLE = _Kind("callable", callable)


class _Check(NamedTuple):
    """The check of one argument of a function.

    Attributes:
        position: where it stands among those without a name; -1: it has one always.
        is_rest: it stands for all that have other names than the function's own parameters.
    """

    name: str
    position: int
    kind: _Kind
    may_be_none: bool
    is_rest: bool = False

    def expected(self) -> str:
        """Return what it should be, in words."""
        is_time = self.kind is _KINDS["float"] and (self.name.endswith("_s") or self.name == "timeout")
        return self.kind.expected + " of seconds" * is_time + " or None" * self.may_be_none


def checked(function: Callable[P, R], own: Sequence[str] = ()) -> Callable[P, R]:
    """Return a function that raises a `BadType` for an argument that isn't what its annotation says. Only
    plain annotations are looked at: texts, numbers, lists of them, functions.

    Args:
        own: parameters that the function itself checks, in better words.

    Example:
        >>> @checked
        ... def wait(timeout_s: "float") -> None: ...
        >>> wait("x")
        Traceback (most recent call last):
        monarch_nb._tracebacks.BadType: wait: timeout_s must be a number of seconds, not str: 'x'
    """
    checks = [each for each in _checks(function) if each.name not in own]
    parameters = set(function.__annotations__)
    name = function.__name__

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for each in checks:
            if each.is_rest:
                for other in kwargs.keys() - parameters:
                    _check(name, each._replace(name=other), args, kwargs)
            else:
                _check(name, each, args, kwargs)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:
                raise
            wrong = str(error).replace(function.__qualname__, name)  # the call itself was wrong
            raise BadType(wrong) from None

    return call


def checks_arguments(*own: str) -> Callable[[C], C]:
    """Return a decorator that has all public methods of a class be `checked`.

    Args:
        own: parameters that its methods themselves check, in better words.
    """

    def decorate(cls: C) -> C:
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and isfunction(method):
                setattr(cls, name, checked(method, own))
        return cls

    return decorate


def _checks(function: Callable[..., Any]) -> list[_Check]:
    """Return what is checked of a function's parameters, from the text of their annotations."""
    code = function.__code__
    num_named = code.co_argcount + code.co_kwonlyargcount
    named = code.co_varnames[:num_named]
    behind = num_named + bool(code.co_flags & CO_VARARGS)
    rest = code.co_varnames[behind : behind + bool(code.co_flags & CO_VARKEYWORDS)]
    found = []
    for name, annotation in function.__annotations__.items():
        text = str(annotation)
        plain = text.removesuffix(_OR_NONE)
        kind = _CALLABLE if plain.startswith("Callable[") else _KINDS.get(plain)
        if kind is not None and name in (*named, *rest):
            at = code.co_varnames.index(name)
            position = at if at < code.co_argcount else -1
            found.append(_Check(name, position, kind, plain != text, name in rest))
    return found


def _check(function: str, each: _Check, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if each.name in kwargs:
        value = kwargs[each.name]
    elif 0 <= each.position < len(args):
        value = args[each.position]
    else:
        return
    if each.kind.fits(value) or (value is None and each.may_be_none):
        return
    was = f"{type(value).__name__}: {reprlib.repr(value)}" if value is not None else "None"
    raise BadType(f"{function}: {each.name} must be {each.expected()}, not {was}")
