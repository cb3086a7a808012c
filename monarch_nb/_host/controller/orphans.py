"""Stops the spawned actors and ranks of a process' actors, once that process has ended without stopping them.

An actor that is stopped ends what it has spawned before it goes, so what is left here was owned by one that
had no time for it. What is stopped ends its own children first, as always. If the owner is made anew, it
spawns anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from monarch_nb._host.controller.exits import Exited
from monarch_nb._host.controller.registry import Client, Group, Registry
from monarch_nb._host.controller.spawn_specs import SpawnSpec, SpawnSpecs
from monarch_nb._protocol.base import encode
from monarch_nb._protocol.healing import ActorSpawned
from monarch_nb._protocol.questions import StopActor
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._wire import address
from monarch_nb._wire import message as wire

CONTROLLERS = "controllers"
"""The group of processes that named singletons live in."""
GRACE_S = 3.0
"""Limit for the clean-up of actors of an orphaned group."""


class StopsRanks(Protocol):
    """The interface to the service that stops ranks."""

    def stop(self, procs: Sequence[int], grace_s: float) -> None:
        """Stop ranks; their actors clean up meanwhile."""
        ...


class Orphans:
    """The service that stops the spawned ranks and actors of processes that have died. Owned by the loop
    thread.

    Args:
        send: sends a frame to a rank.
    """

    def __init__(
        self, registry: Registry, specs: SpawnSpecs, ranks: StopsRanks, send: Callable[[int, bytes], None]
    ) -> None:
        self._registry = registry
        self._specs = specs
        self._ranks = ranks
        self._send = send

    def rank_exited(self, exited: Exited) -> None:
        """Stop actors and ranks that actors of an ended rank owned on other processes; drop its own actors
        first if it has ended on purpose.
        """
        proc = exited.end.proc
        if exited.end.stopped:
            self._specs.procs_stopped([proc])
        self._owner_gone(proc, f"rank {exited.end.rank}")

    def client_gone(self, client: Client) -> None:
        """Stop what the actors of a program that has gone owned here; the program may be a guest, a rank of
        another mesh. Spawns of the program itself aren't owned by its actors: they outlive a notebook's
        kernel.
        """
        self._owner_gone(client.proc, f"{client.what} (pid {client.pid})")

    @handles(ActorSpawned)
    def do_actor_spawned(self, request: ActorSpawned, sender: Sender) -> None:
        """Keep the specification from which an actor is created again. The end of its owner may have been
        reported before.
        """
        self._specs.add(request)
        proc, actor = request.creator
        if actor and not self._registry.lives(proc):
            self._owner_gone(proc, "which is no more")

    def _owner_gone(self, proc: int, who: str) -> None:
        orphaned = self._stop_groups(proc)
        reason = f"the process of its owner, {who}, has ended"
        for spec in self._specs.owned_by(proc):
            # named singletons belong to the mesh, whoever asked for them first
            if not self._is_controller(spec):
                self._stop_actors(spec, reason, but=orphaned)

    def _stop_groups(self, proc: int) -> set[int]:
        """Stop the ranks that actors of a process have spawned; return them."""
        orphaned: set[int] = set()
        for group in self._owned_groups(proc):
            living = self._living(group.procs)
            orphaned.update(living)
            self._ranks.stop(living, GRACE_S)
        return orphaned

    def _stop_actors(self, spec: SpawnSpec, reason: str, but: set[int]) -> None:
        procs = [proc for proc in self._living(spec.procs) if proc not in but]
        self._specs.stopped(spec.actor_id, list(spec.procs))
        payload = encode(StopActor(spec.actor_id, reason, waits=False))
        name = StopActor.wire_name.encode()
        for proc in procs:
            self._send(
                proc, wire.pack(wire.CALL, src=address.CONTROLLER, dst=proc, name=name, payload=payload)
            )

    def _owned_groups(self, proc: int) -> list[Group]:
        return [g for g in self._registry.groups.values() if g.creator[0] == proc and g.creator[1]]

    def _is_controller(self, spec: SpawnSpec) -> bool:
        entry = self._registry.procs.get(spec.procs[0])
        return entry is not None and entry.group == CONTROLLERS

    def _living(self, procs: Iterable[int]) -> list[int]:
        entries = [self._registry.procs.get(proc) for proc in procs]
        return [entry.proc for entry in entries if entry is not None and entry.end is None]
