"""Determines where user code of this rank is at present: its line, and its collective.

Found by looking at frames when asked, so it costs nothing when nobody asks. Runs in the reading thread; a
rank whose interpreter's lock is held doesn't answer, and what its activity page says has to do.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from monarch_nb._frames.cells import cell_number
from monarch_nb._frames.owner import frames_from, users_index
from monarch_nb._protocol.resources import Collective, Standing
from monarch_nb._protocol.work import Work
from monarch_nb._rank.operations import is_distributed, tensor_in
from monarch_nb._sources import source_line
from monarch_nb._wire.loaded import loaded

if TYPE_CHECKING:
    from monarch_nb._rank.main import Rank


def where(rank: Rank) -> Standing:
    """Return where the running code is: the line and the operation of the first thread that has one."""
    runners = list(rank.actors.actors.values())
    current = rank.worker.current
    frames = [rank.worker.frame(), *(frame for runner in runners for frame in runner.frames())]
    line, collective = "", None
    for frame in frames:
        if frame is not None:
            line = line or _line(frame)
            collective = collective or _collective(frame)
    return Standing(
        line,
        collective,
        len(rank.worker.inbox) + sum(len(r.inbox) for r in runners),
        current is not None and current.name == Work.EXECUTE.encode(),
    )


def _line(frame: FrameType) -> str:
    """Return the innermost line of the user's: "In [3], line 4: loss.backward()"."""
    frames = frames_from(frame)
    index = users_index(frames)
    if index is None:
        return ""
    at = frames[index]
    file = at.f_code.co_filename
    text = source_line(file, at.f_lineno)
    cell = cell_number(file)
    place = f"In [{cell}]" if cell is not None else f"{file}, in {at.f_code.co_name}"
    return f"{place}, line {at.f_lineno}" + (f": {text}" if text else "")


def _collective(frame: FrameType) -> Collective | None:
    """Return the operation of `torch.distributed` that a thread is in."""
    for at in frames_from(frame):
        if is_distributed(at):
            tensor = tensor_in(at.f_locals)
            return Collective(
                at.f_code.co_name,
                _sequence(at.f_locals.get("group")),
                time.time(),
                tensor.shape,
                tensor.dtype,
            )
    return None


def _sequence(group: Any) -> int:
    """Return how many operations of a group have been entered here; 0 if it doesn't count."""
    distributed = getattr(loaded("torch"), "distributed", None)
    if distributed is None or not distributed.is_initialized():
        return 0
    with suppress(RuntimeError, AttributeError):
        return int((group or distributed.group.WORLD)._get_sequence_number_for_group())
    return 0
