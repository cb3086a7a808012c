"""Methods of a mesh that one of its parts implements: written once, with signature and docstring."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from monarch_nb._tracebacks import BadType

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def delegate(part: str, method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls a method of an object's part, with its signature and docstring.

    Args:
        part: the attribute of the object that holds the part.
        method: the part's method, as its class has it.

    Example:
        >>> class Names:
        ...     def add(self, name: str) -> str:
        ...         return f"added {name}"
        >>> class Book:
        ...     def __init__(self):
        ...         self.names = Names()
        ...     add = delegate("names", Names.add)
        >>> Book().add("Ada")
        'added Ada'
    """

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(getattr(self, part), *args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:
                raise
            # the call itself had wrong arguments
            wrong = str(error).replace(method.__qualname__, method.__name__)
            raise BadType(wrong) from None

    return update_wrapper(call, method)
