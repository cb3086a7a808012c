"""Results that stay on their ranks, as handles."""

from __future__ import annotations

import secrets
from typing import Any

from monarch_nb._post import here
from monarch_nb._shape import Shape

_kept: dict[int, Any] = {}
"""What endpoints called with `rref` have left in this process."""


class RRef:
    """A value on each rank of a mesh. As an argument of an endpoint on those ranks, it becomes the rank's own value."""

    def __init__(self, key: int, procs: tuple[int, ...], shape: Shape) -> None:
        self.key = key
        self.procs = procs
        self.shape = shape

    @classmethod
    def new(cls, procs: tuple[int, ...], shape: Shape) -> RRef:
        """Return a handle for results that are on their way."""
        return cls(secrets.randbits(63) | 1, procs, shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.key, self.procs, self.shape)

    def __repr__(self) -> str:
        return f"<RRef on {self.shape.extent}>"


def keep(key: int, value: Any) -> None:
    """Leave a result here."""
    _kept[key] = value


def _arrive(key: int, procs: tuple[int, ...], shape: Shape) -> Any:
    """Become the value, on a rank that has it."""
    office = here.office()
    if office.me not in procs:
        return RRef(key, procs, shape)
    if key not in _kept:
        raise LookupError("the result that this rref stands for is not here: its endpoint has raised")
    return _kept[key]
