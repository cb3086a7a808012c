"""Finds requests again whose answer was lost, and releases what they have granted: nothing that an engine may
have granted is forgotten.

An engine's answer is lost if it comes too late, can't be read, or if the program that has asked ends before
it could note it. The request is then found by a name that follows from its record. What can't be found out
stays on record.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from monarch_nb._wire.process import is_running
from monarch_nb.exceptions import MeshError
from monarch_nb.job import allocation as records
from monarch_nb.job.allocation import Allocation
from monarch_nb.job.engines import EngineError, NoAnswer, engine_of

_LOOK_S = 0.05


def recalled(asked: Allocation) -> Allocation:
    """Return a mesh's requests with the engine's ids of those whose answers were lost, as far as the engine
    knows them.

    Raises:
        EngineError: if the engine can't say.
    """
    engine = engine_of(asked.spec)
    first = asked if asked.has_answer else engine.recalled(asked)
    return replace(first, added=tuple(map(recalled, asked.added)))


def found_again(asked: Allocation) -> Allocation:
    """Return a mesh's requests as `recalled` does, and note what was found on record.

    Raises:
        EngineError: if the engine can't say.
    """
    found = recalled(asked)
    if found != asked:
        found = replace(found, is_unsure=False)
        records.write_record(found)
    return found


def is_being_requested(asked: Allocation) -> bool:
    """Return whether the program that makes a request hasn't noted yet what the engine calls it."""
    return not asked.has_answer and not asked.is_unsure and is_running(asked.submitted_by, None)


def noted(name: str) -> Allocation | None:
    """Return a mesh's record when the engine's answer to its request is noted. If the program that has asked
    ended before that, the engine is asked whether it knows the request.

    Raises:
        EngineError: if the engine can't say.
    """
    asked = records.read_record(name)
    while asked is not None and is_being_requested(asked):
        time.sleep(_LOOK_S)
        asked = records.read_record(name)
    return asked if asked is None else found_again(asked)


def end_all(asked: Allocation) -> Allocation:
    """Release everything that a mesh has requested from an engine; return its requests as `recalled` does.

    Raises:
        EngineError: if the engine can't be reached, or can't say whether it has a request.
    """
    engine, found = engine_of(asked.spec), recalled(asked)
    for each in found.requests:
        engine.end_allocation(each)
    engine.end_controller(found)
    if may_exist(found) and not engine.finds(asked.spec):
        raise EngineError(
            f"whether engine {asked.spec.engine} has a job for mesh {asked.mesh!r} isn't known: its number "
            "was never noted, and the profile has no find = that tells it. Look for it by the engine's own "
            "commands, and end it there"
        )
    return found


def may_exist(asked: Allocation) -> bool:
    """Return whether an engine may have a request that it doesn't know by name, since nothing says that it
    never got it.
    """
    if asked.has_answer:
        return False
    return asked.is_unsure or (bool(asked.hosts) and not engine_of(asked.spec).finds(asked.spec))


def drop(asked: Allocation, error: BaseException | None = None) -> None:
    """Release what an engine has granted. What can't be released, or may still be granted, stays on record.

    Args:
        error: why it's dropped; it's made to say that the request stays on record.
    """
    with suppress(MeshError):
        noted = records.read_record(asked.mesh)
        if noted is None:  # nobody was asked, or another program has cancelled it
            return
        asked = asked if asked.has_answer else noted
    engine = engine_of(asked.spec)
    is_refused = isinstance(error, EngineError) and not isinstance(error, NoAnswer)
    if is_refused and not asked.has_answer and not engine.finds(asked.spec):
        records.remove_record(asked.mesh)
        return
    try:
        found = end_all(asked)
    except MeshError as failed:
        _keep(asked)
        _say(error, f"It stays on record, as it couldn't be given back ({failed})", asked)
        return
    if isinstance(error, NoAnswer) and not found.has_answer and engine.can.queue:
        _keep(asked)
        _say(error, f"{asked.spec.engine} may have the request all the same, so it stays on record", asked)
        return
    records.remove_record(asked.mesh)


def _keep(asked: Allocation) -> None:
    with suppress(OSError, MeshError):
        records.write_record(asked if asked.has_answer else replace(asked, is_unsure=True))


def _say(error: BaseException | None, what: str, asked: Allocation) -> None:
    """Add to an error what has become of the request."""
    text = f"{what}: %mesh queue looks for it; give it up: %mesh cancel {asked.mesh}"
    if isinstance(error, MeshError) and error.args:
        error.args = (f"{error.args[0]}. {text}", *error.args[1:])
    elif error is not None:
        error.add_note(text)
