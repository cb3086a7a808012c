"""One task of a map, on a rank: its function comes once and is kept, its arguments come each time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from monarch_nb._wire import codec

MAX_FUNCTIONS = 32
_functions: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()
"""Functions that this process has been sent, by digest, the one used last at the end."""


class FunctionMissing(LookupError):
    """A rank was asked for a task whose function it doesn't have: it's new, or has had many others since."""


class TaskCall(msgspec.Struct, frozen=True):
    """Calls a function that a rank keeps.

    Attributes:
        digest: of the function.
        function: it, encoded; empty where the rank has it.
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
