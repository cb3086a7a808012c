"""What actors of a process have spawned elsewhere, once that process has ended without stopping it: it's
stopped for them.

An actor that is stopped ends what it has spawned before it goes, so what is left here was owned by one that
had no time for it. What is stopped ends its own children first, as always. If the owner is made anew, it
spawns anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_nb._host.registry import Group
from monarch_nb._host.spawn_specs import SpawnSpec
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.questions import StopActor
from monarch_nb._wire import address
from monarch_nb._wire import message as wire

if TYPE_CHECKING:
    from monarch_nb._host.controller import ControllerProcess

CONTROLLERS = "controllers"
"""The group of processes that named singletons live in."""
GRACE_S = 3.0
"""How long actors of an orphaned group may clean up."""


def stop_orphans(controller: ControllerProcess, end: RankExit) -> None:
    """Stop the processes and actors that actors of a process owned which has ended."""
    reason = f"the process of its owner, rank {end.rank}, has ended"
    orphaned: set[int] = set()
    for group in _owned_groups(controller, end.proc):
        living = _living(controller, group.procs)
        orphaned.update(living)
        controller.ranks.stop(living, GRACE_S)
    for spec in controller.healing.spawn_specs.owned_by(end.proc):
        if _is_controller(controller, spec):
            continue  # it's the mesh's, whoever asked for it first
        procs = [proc for proc in _living(controller, spec.procs) if proc not in orphaned]
        controller.healing.spawn_specs.stopped(spec.actor_id, list(spec.procs))
        payload = encode(StopActor(spec.actor_id, reason, waits=False))
        for proc in procs:
            controller.send_to_rank(
                proc,
                wire.pack(
                    wire.CALL,
                    src=address.CONTROLLER,
                    dst=proc,
                    name=StopActor.wire_name.encode(),
                    payload=payload,
                ),
            )


def _owned_groups(controller: ControllerProcess, proc: int) -> list[Group]:
    return [
        group
        for group in controller.registry.groups.values()
        if group.creator[0] == proc and group.creator[1]
    ]


def _is_controller(controller: ControllerProcess, spec: SpawnSpec) -> bool:
    entry = controller.registry.procs.get(spec.procs[0])
    return entry is not None and entry.group == CONTROLLERS


def _living(controller: ControllerProcess, procs: list[int] | tuple[int, ...]) -> list[int]:
    entries = [controller.registry.procs.get(proc) for proc in procs]
    return [entry.proc for entry in entries if entry is not None and entry.end is None]
