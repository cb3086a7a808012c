"""Finds where coroutines await: their frames, outermost first. A thread's stack shows the event loop only."""

from __future__ import annotations

import asyncio
from types import FrameType
from typing import Any

MAX_DEPTH = 100


def frames_of(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of a task's coroutines, from the outermost to the one that awaits something."""
    found: list[FrameType] = []
    at: Any = task.get_coro()
    while at is not None and len(found) < MAX_DEPTH:
        frame = (
            getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
        )
        if frame is None:
            break
        found.append(frame)
        at = (
            getattr(at, "cr_await", None)
            or getattr(at, "gi_yieldfrom", None)
            or getattr(at, "ag_await", None)
        )
    return found
