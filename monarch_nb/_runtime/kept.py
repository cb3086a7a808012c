"""Keeps the results of endpoints called with `rref` in this process."""

from __future__ import annotations

from typing import Any

_kept: dict[int, Any] = {}


def keep(key: int, value: Any) -> None:
    """Keep a result in this process."""
    _kept[key] = value


def find(key: int) -> Any:
    """Find a result kept in this process.

    Raises:
        LookupError: if there's nothing: the endpoint has raised.
    """
    if key not in _kept:
        raise LookupError("the result that this rref stands for is not here: its endpoint has raised")
    return _kept[key]
