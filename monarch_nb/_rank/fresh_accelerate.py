"""Resets accelerate to the state of a fresh process: its classes keep the number of processes and the own
index. Those of an earlier run would persist, and no process group would be made. transformers' Trainer uses
it, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MODULE = "accelerate.state"
_CLASSES = ("PartialState", "AcceleratorState", "GradientState")


@contextmanager
def fresh_accelerate() -> Iterator[None]:
    """Present accelerate to a program as in a new process; restore its state afterwards."""
    before = {name: dict(state) for name, state in _states()}
    _set({})
    try:
        yield
    finally:
        _set(before)  # also if the program has imported it itself: then it's loaded, and new


def _set(states: dict[str, dict[str, Any]]) -> None:
    for name, state in _states():
        state.clear()
        state.update(states.get(name, {}))


def _states() -> list[tuple[str, dict[str, Any]]]:
    """Return the state that accelerate's classes share with their objects, if it's loaded."""
    module = sys.modules.get(_MODULE)
    classes: list[tuple[str, Any]] = [(name, getattr(module, name, None)) for name in _CLASSES]
    return [(name, cls._shared_state) for name, cls in classes if hasattr(cls, "_shared_state")]
