"""A module of the user's, with a decorated function and a variable that another of its functions sets."""

from __future__ import annotations

from typing import Any

import monarch_nb

told = 0


def tell(number: int) -> None:
    global told
    told = number


@monarch_nb.remote
def times_told(x: Any) -> Any:
    return x * told
