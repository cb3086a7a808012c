"""The random generators of Python and NumPy: their state, kept and compared, and begun anew as in a fresh
interpreter.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def reseed() -> None:
    """Reseed the generators, as in a fresh interpreter: forks share the zygote's state."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")  # `numpy.random` would import it now, in each rank
    if numpy_random is not None:
        numpy_random.seed()


@contextmanager
def fresh_random_numbers() -> Iterator[None]:
    """Begin the random numbers anew, and let those of before go on afterwards."""
    with random_state_kept():
        reseed()
        yield


def random_state() -> tuple[Any, Any]:
    """Return the state of both, to be compared; None for NumPy's if it isn't imported."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return random.getstate(), None
    name, keys, *rest = numpy_random.get_state()
    return random.getstate(), (name, keys.tolist(), *rest)


@contextmanager
def random_state_kept() -> Iterator[Callable[[], bool]]:
    """Put the state back at the end of a block.

    Yields:
        what says, after the block, whether random numbers were drawn in it.
    """
    before = after = random_state()
    try:
        yield lambda: after != before
    finally:
        after = random_state()
        of_python, of_numpy = before
        random.setstate(of_python)
        if of_numpy is not None:
            sys.modules["numpy.random"].set_state(of_numpy)
