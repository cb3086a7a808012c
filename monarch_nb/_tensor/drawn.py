"""Random numbers that a function draws of Python's and numpy's own generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def random_state() -> Any:
    """Return the state of Python's and numpy's own generators, to be compared."""
    of_numpy: Any = np.random.get_state()
    name, keys, *rest = of_numpy
    return random.getstate(), name, keys.tobytes(), rest


@contextmanager
def random_state_kept() -> Iterator[Callable[[], bool]]:
    """Put the state back at the end of a block.

    Yields:
        what says whether random numbers were drawn in the block.
    """
    before, of_python, of_numpy = random_state(), random.getstate(), np.random.get_state()
    after = before

    def were_drawn() -> bool:
        return bool(after != before)

    try:
        yield were_drawn
    finally:
        after = random_state()
        if were_drawn():
            random.setstate(of_python)
            np.random.set_state(of_numpy)
