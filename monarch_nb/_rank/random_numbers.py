"""The random generators of Python and NumPy, begun anew as in a fresh interpreter."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def reseed() -> None:
    """Reseed the generators, as in a fresh interpreter: forks share the zygote's state."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")  # `numpy.random` would import it now, in each rank
    if numpy_random is not None:
        numpy_random.seed()


@contextmanager
def fresh_random_numbers() -> Iterator[None]:
    """Begin the random numbers anew, and let those of before go on afterwards."""
    numpy_random = sys.modules.get("numpy.random")
    before, of_numpy = random.getstate(), numpy_random.get_state() if numpy_random is not None else None
    reseed()
    try:
        yield
    finally:
        random.setstate(before)
        if numpy_random is not None:
            numpy_random.set_state(of_numpy)
