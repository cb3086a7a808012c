"""Keeps the arguments of each spawn on the controller's disk, so that actors can be created again. An entry
is deleted when its actors are stopped.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from monarch_nb._protocol.healing import ActorSpawned

MAX_IN_MEMORY_BYTES = 64 << 20
"""Maximum memory in all for specifications that can't be written to disk."""


@dataclass
class SpawnSpec:
    """The specification of one spawn, from which its actors can be created again.

    Attributes:
        actor_id: its actors' id.
        name: the name it was spawned under.
        procs: all its procs, by slot.
        context: the extent it was spawned on, encoded.
        creator: proc and actor (0: none) that own it.
        size_bytes: size of the arguments and the class.
        kept: whether the arguments are kept; too large ones aren't, nor those for which disk and memory have
            no room.
        checkpointed: "own", "replicated" or "sharded" if its state is saved, else empty.
    """

    actor_id: int
    name: str
    procs: tuple[int, ...]
    context: bytes
    creator: tuple[int, int]
    size_bytes: int
    kept: bool
    checkpointed: str = ""
    data: bytes | None = None
    """The specification, if it couldn't be written to disk."""

    def slots_on(self, procs: set[int]) -> dict[int, int]:
        """Return the slots that are on some procs, with their procs."""
        return {slot: proc for slot, proc in enumerate(self.procs) if proc in procs}


class SpawnSpecs:
    """The spawn specs of a mesh, in the order of their spawns: later actors may use earlier ones. Owned by
    the loop thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._specs: dict[int, SpawnSpec] = {}
        self._stopped: dict[int, set[int]] = {}

    def add(self, spawned: ActorSpawned) -> None:
        """Enter a spawn."""
        data = spawned.spec
        actor_id = spawned.actor_id
        self._specs[actor_id] = SpawnSpec(
            actor_id,
            spawned.name,
            spawned.procs,
            spawned.context,
            spawned.creator,
            spawned.size_bytes,
            data is not None,
            spawned.checkpointed,
        )
        if data is not None:
            try:
                self._write(self._path(actor_id), data)
            except OSError:
                self._keep_in_memory(self._specs[actor_id], data)

    @staticmethod
    def _write(path: str, data: bytes) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
        except OSError:
            with suppress(OSError):
                os.unlink(path)
            raise

    def _keep_in_memory(self, spec: SpawnSpec, data: bytes) -> None:
        if (
            len(data) + sum(len(r.data) for r in self._specs.values() if r.data is not None)
            <= MAX_IN_MEMORY_BYTES
        ):
            spec.data = data
        else:
            spec.kept = False

    def _path(self, actor_id: int) -> str:
        return os.path.join(self._directory, f"{actor_id:x}")

    def read(self, spec: SpawnSpec) -> bytes:
        """Return the class and arguments, encoded.

        Raises:
            OSError: if somebody has taken the file away.
        """
        if spec.data is not None:
            return spec.data
        with open(self._path(spec.actor_id), "rb") as file:
            return file.read()

    def find(self, actor_id: int) -> SpawnSpec | None:
        """Return the spawn spec of an actor."""
        return self._specs.get(actor_id)

    def on(self, procs: set[int]) -> list[SpawnSpec]:
        """Return the spawn specs of actors that belong on any of some procs, oldest first."""
        return [r for r in self._specs.values() if procs & self._living(r)]

    def owned_by(self, proc: int) -> list[SpawnSpec]:
        """Return the spawn specs of actors that an actor of a process has spawned, newest first."""
        return [r for r in reversed(self._specs.values()) if r.creator[0] == proc and r.creator[1]]

    def living_slots(self, spec: SpawnSpec, procs: set[int]) -> dict[int, int]:
        """Return the slots on some procs whose actors weren't stopped."""
        return {slot: proc for slot, proc in spec.slots_on(procs).items() if proc in self._living(spec)}

    def _living(self, spec: SpawnSpec) -> set[int]:
        return set(spec.procs) - self._stopped.get(spec.actor_id, set())

    def widen(self, before: list[int], now: list[int], context: bytes) -> dict[int, tuple[int, ...]]:
        """Extend actors that were on the whole mesh to all of its new procs; return these by actor id."""
        found = {}
        for spec in self._specs.values():
            if spec.procs == tuple(before):
                spec.procs, spec.context = tuple(now), context
                self._stopped.pop(spec.actor_id, None)
                found[spec.actor_id] = spec.procs
        return found

    def stopped(self, actor_id: int, procs: list[int]) -> None:
        """Record that actors were stopped on purpose: they aren't created again."""
        spec = self._specs.get(actor_id)
        if spec is None:
            return
        self._stopped.setdefault(actor_id, set()).update(procs)
        if not self._living(spec):
            self._drop(actor_id)

    def procs_stopped(self, procs: list[int]) -> None:
        """Record that processes were stopped on purpose, with their actors, which aren't created again."""
        for spec in self.on(set(procs)):
            self.stopped(spec.actor_id, procs)

    def _drop(self, actor_id: int) -> None:
        self._specs.pop(actor_id, None)
        self._stopped.pop(actor_id, None)
        with suppress(OSError):
            os.unlink(self._path(actor_id))
