"""The specification of a spawn, as it goes to each process and is kept for processes that come later."""

from __future__ import annotations

from typing import Any, TypedDict

ActorSpec = TypedDict(
    "ActorSpec",
    {
        "class": Any,
        "args": tuple[Any, ...],
        "kwargs": dict[str, Any],
        "name": str,
        "creator": tuple[int, int],
        "creator_instance": Any,
        "proc_mesh": Any,
        "mesh": Any,
    },
)
"""The user's class and arguments, pickled by cloudpickle, for which it is a plain dict. `creator`: proc and
actor (0: none) that own the new actors; `creator_instance`, `proc_mesh`, `mesh`: handles for their context.
"""
