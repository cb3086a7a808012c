"""A rank's exit: all parts of a controller hear of it, in one order, whatever one of them raises."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb._host.controller import exits
from monarch_nb._host.controller.exits import Exited, Subscriber
from monarch_nb._host.controller.orphans import CONTROLLERS, Orphans
from monarch_nb._host.controller.registry import Group, Registry
from monarch_nb._host.controller.spawn_specs import SpawnSpecs
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.healing import ActorSpawned
from monarch_nb._protocol.rank_spec import GroupSpec
from monarch_nb._shape import Extent
from monarch_nb._wire import message as wire

PROC = 7
END = RankExit(PROC, "workers", 0, "gpu-1", 4711, signal=9)


class Part:
    """Stands for a part of the controller; notes what it hears."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self._name = name
        self._heard = heard

    def __getattr__(self, method: str) -> Any:
        return lambda _exit: self._heard.append(f"{self._name}.{method}")


class Parts:
    """Stands for a controller."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __getattr__(self, name: str) -> Part:
        return Part(name, self.heard)


def heard_of(exited: Exited) -> list[str]:
    """Return which methods of which parts are called."""
    parts: Any = Parts()
    exits.tell(exits.subscribers(parts), exited)
    heard: list[str] = parts.heard
    return heard


def test_the_parts_hear_in_this_order() -> None:
    """Each pair that depends on its order is explained in `exits.subscribers`: change both."""
    assert heard_of(Exited(END)) == [
        "router.forget",
        "asking.forget",
        "ranks.note_exit",
        "journal.rank_exited",
        "healing.rank_exited",
        "checkpoints.rank_exited",
        "orphans.rank_exited",
        "cells.rank_exited",
        "status_publisher.proc_has_ended",
        "debug.proc_has_ended",
        "questions.proc_has_ended",
    ]


def test_a_rank_that_starts_again_does_so_last() -> None:
    assert heard_of(Exited(END, again=True)) == [*heard_of(Exited(END)), "ranks.start_again"]


def test_what_one_part_raises_is_logged_and_the_others_hear(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Exited] = []

    def fail(_exited: Exited) -> None:
        raise KeyError("a mistake")

    exits.tell((Subscriber("first", fail), Subscriber("second", heard.append)), Exited(END))
    assert heard == [Exited(END)]
    assert "KeyError: 'a mistake'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stopped", "again", "is_loss"),
    [(False, False, True), (True, False, False), (False, True, False), (True, True, False)],
)
def test_what_nobody_wanted_is_a_loss(stopped: bool, again: bool, is_loss: bool) -> None:
    end = RankExit(PROC, "workers", 0, "gpu-1", 4711, stopped=stopped)
    assert Exited(end, again).is_loss is is_loss


class Stopped:
    """Notes which ranks are stopped."""

    def __init__(self) -> None:
        self.procs: list[int] = []

    def stop(self, procs: Any, grace_s: float) -> None:
        self.procs += procs


def spawned(actor_id: int, name: str, procs: tuple[int, ...], creator: tuple[int, int]) -> ActorSpawned:
    """Return what the controller is told of a spawn."""
    return ActorSpawned(actor_id, name, procs, b"", creator, "", 0, b"")


def test_what_the_actors_of_a_dead_rank_own_is_stopped_once(tmp_path: Any) -> None:
    registry, specs, ranks, sent = Registry(), SpawnSpecs(str(tmp_path)), Stopped(), list[int]()
    host = registry.new_host("here").index
    owner, elsewhere, child, single = (
        registry.new_procs(host, group, [0])[0].proc
        for group in ("workers", "others", "children", CONTROLLERS)
    )
    for name, procs, creator in [
        ("workers", [owner], (0, 0)),
        ("children", [child], (owner, 5)),
        ("others", [elsewhere], (owner, 0)),  # spawned by the program that the rank runs, by no actor
    ]:
        registry.groups[name] = Group(
            name, Extent(["procs"], [1]), procs, GroupSpec(name, b""), "fork", creator=creator
        )
    specs.add(spawned(5, "owner", (owner,), (1, 0)))
    specs.add(spawned(6, "in its own group", (child,), (owner, 5)))
    specs.add(spawned(7, "in another's", (elsewhere,), (owner, 5)))
    specs.add(spawned(8, "the mesh's", (single,), (owner, 5)))
    orphans = Orphans(registry, specs, ranks, lambda to, frame: sent.append(wire.unpack(frame).dst))
    end = RankExit(owner, "workers", 0, "here", 4711, signal=9)
    orphans.rank_exited(Exited(end))
    assert ranks.procs == [child]
    assert sent == [elsewhere], "what is in a process that is stopped ends with that"
    assert [specs.find(i) is not None for i in (5, 6, 7, 8)] == [True, False, False, True]
    orphans.rank_exited(Exited(RankExit(owner, "workers", 0, "here", 4711, stopped=True)))
    assert specs.find(5) is None, "a rank that was stopped isn't made again, nor are its actors"
