"""Runs one task of a map on a rank: its function is sent once and kept, its arguments are sent each time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from monarch_nb._wire import codec

MAX_FUNCTIONS = 32
_functions: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()
"""Functions that this process was sent, by digest, the most recently used last."""


class FunctionMissing(LookupError):
    """The error of a rank that lacks a task's function: the rank is new, or has received many others
    since.
    """


class TaskCall(msgspec.Struct, frozen=True):
    """A callable that calls a function kept on a rank.

    Attributes:
        digest: digest of the function.
        function: the function, encoded; empty where the rank has it already.
    """

    digest: bytes
    function: bytes = b""

    __name__ = "task"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.digest in _functions:
            _functions.move_to_end(self.digest)
        elif not self.function:
            raise FunctionMissing(self.digest.hex())
        else:
            _functions[self.digest] = codec.from_bytes(self.function)
            if len(_functions) > MAX_FUNCTIONS:
                _functions.popitem(last=False)
        return _functions[self.digest](*args, **kwargs)
