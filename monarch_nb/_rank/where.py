"""Where user code of this rank stands just now: its line, and the collective that it's in.

Found by looking at frames when asked, so it costs nothing when nobody asks. Runs in the reading thread; a rank whose interpreter's lock is held
doesn't answer, and what its page says has to do.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from monarch_nb._post import here
from monarch_nb._rank.frames import cell_number, source_line
from monarch_nb._rank.operations import tensor_in

if TYPE_CHECKING:
    from monarch_nb._rank.actor_host import ActorHost

_NOT_THE_USERS = ("/monarch_nb/_", "/IPython/", "<frozen ", "/lib/python3")
_DISTRIBUTED = "/torch/distributed/distributed_c10d.py"
_WRAPPERS = frozenset({"wrapper", "func_wrapper"})


def where(actors: ActorHost) -> dict[str, Any]:
    """Return "line" and "collective" of what runs, "num_queued" messages, and whether the main thread runs a "function"."""
    rank = here.rank
    current = rank.worker.current if rank is not None else None
    frames = [rank.worker.frame()] if rank is not None else []
    frames += [frame for runner in list(actors.actors.values()) for frame in runner.frames()]
    found: dict[str, Any] = {"line": "", "collective": None, "function": current is not None and current.name == b"execute"}
    for frame in frames:
        if frame is not None:
            found["line"] = found["line"] or _line(frame)
            found["collective"] = found["collective"] or _collective(frame)
    waiting = len(rank.worker.inbox) if rank is not None else 0
    found["num_queued"] = waiting + sum(len(r.inbox) for r in list(actors.actors.values()))
    return found


def _line(frame: FrameType) -> str:
    """Return the innermost line of the user's: "In [3], line 4: loss.backward()"."""
    at: FrameType | None = frame
    while at is not None:
        file = at.f_code.co_filename
        if not any(part in file for part in _NOT_THE_USERS) and file != "<string>":
            text = source_line(file, at.f_lineno)
            cell = cell_number(file)
            place = f"In [{cell}]" if cell is not None else f"{file}, in {at.f_code.co_name}"
            return f"{place}, line {at.f_lineno}" + (f": {text}" if text else "")
        at = at.f_back
    return ""


def _collective(frame: FrameType) -> dict[str, Any] | None:
    """Return the operation of `torch.distributed` that a thread is in: name, sequence number, shape and dtype."""
    at: FrameType | None = frame
    while at is not None:
        code = at.f_code
        if code.co_filename.endswith(_DISTRIBUTED) and code.co_name not in _WRAPPERS:
            return _describe(code.co_name, at.f_locals)
        at = at.f_back
    return None


def _describe(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "sequence": _sequence(arguments.get("group")), "shape": None, "dtype": ""}
    return {**found, **tensor_in(arguments)}


def _sequence(group: Any) -> int:
    """Return how many operations of a group have been entered here; 0 if it doesn't count."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_initialized():
        return 0
    with suppress(RuntimeError, AttributeError):
        return int((group or distributed.group.WORLD)._get_sequence_number_for_group())
    return 0
