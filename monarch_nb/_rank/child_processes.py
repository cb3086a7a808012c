"""Processes that user code starts by `multiprocessing`. Spawned processes know no cells of their rank, whose
`__main__` has no file that they could import. So definitions of cells are sent to them by value, and come
back the same way.
"""

from __future__ import annotations

import sys
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

from monarch_nb._wire import codec

_HOOK = "reducer_override"


def install() -> None:
    """Have multiprocessing send functions and classes of cells by value, from this process."""
    setattr(ForkingPickler, _HOOK, _reduced)


def load(data: bytes) -> Any:
    """Return the object that a parent or child process has sent by value; objects sent from this process go
    by value, too.
    """
    install()
    return codec.from_bytes(data)


def _reduced(_pickler: object, value: object) -> Any:
    if not isinstance(value, type | FunctionType) or value.__module__ != "__main__" or _is_file():
        return NotImplemented
    # With the source of its cell: a traceback of the child shows the user's line.
    return load, (codec.to_bytes(codec.encode(value)),)


def _is_file() -> bool:
    """Say whether `__main__` is a script, which children import as any other module."""
    return hasattr(sys.modules["__main__"], "__file__")
