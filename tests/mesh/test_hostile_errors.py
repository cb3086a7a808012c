"""Whatever is raised, whoever has called hears of it, and the actor and its process go on."""

from __future__ import annotations

from typing import Any

import pytest
from hostile_errors import NAMES, AsyncHostile, Hostile, HostileStart, make

from monarch_nb.actor import MeshFailure, ProcMesh
from monarch_nb.exceptions import ActorError, SupervisionError

T = 30


@pytest.mark.parametrize("name", NAMES)
def test_each_call_is_answered(procs: ProcMesh, name: str) -> None:
    hostile = procs.spawn("hostile", Hostile)
    waiting = procs.spawn("waiting", AsyncHostile)
    for called in (hostile.alone, hostile.in_a_group, hostile.as_a_cause, waiting.alone):
        with pytest.raises(ActorError, match="of 4 ranks failed"):
            called.call(name).get(T)
    for actors in (hostile, waiting):
        assert actors.ok.call().get(T).reduce("equal") == "ok"


def _raise(name: str) -> Any:
    raise make(name)


@pytest.mark.parametrize("name", NAMES)
def test_work_of_the_main_thread_is_answered(procs: ProcMesh, name: str) -> None:
    with pytest.raises(ActorError, match="of 4 ranks failed"):
        procs.execute(_raise, name).get(T)
    assert procs.execute(len, name).get(T).reduce("equal") == len(name)


@pytest.mark.parametrize("name", NAMES)
def test_an_actor_that_is_not_constructed_says_so(
    procs: ProcMesh, name: str, unhandled: list[MeshFailure]
) -> None:
    started = procs.spawn("started", HostileStart, name)
    with pytest.raises(SupervisionError):
        started.ok.call().get(T)
