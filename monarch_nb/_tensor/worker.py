"""The engine's two actors on each rank: one executes the commands, the other one answers while the first one
hangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch_nb._rank import rendezvous
from monarch_nb._rank.tensor.executor import Executor, executors
from monarch_nb._rank.tensor.files import checksums
from monarch_nb._rank.tensor.meshes import PURPOSE, machine
from monarch_nb._rank.tensor.protocol import (
    Batch,
    Decision,
    Fetched,
    FetchFrom,
    Offer,
    Recovery,
    Report,
    Stopped,
)  # fmt: skip
from monarch_nb.actor import Actor, Port, current_rank, endpoint


class TensorWorker(Actor):
    """The actor on each rank that executes the commands of a stream, in order.

    Args:
        name: of the engine.
        port: port for reports of a rank that can't continue.
    """

    def __init__(self, name: str, port: Port[Report]) -> None:
        self._executor = executors[name] = Executor(name, current_rank().rank, port.send)

    @endpoint
    def run(self, batch: Batch) -> None:
        """Execute commands."""
        self._executor.run(batch)

    @endpoint
    def fetch(self, slot: int, how: FetchFrom, first: int = 0) -> Fetched:
        """Return a value, after all commands before the request."""
        return self._executor.fetch(slot, how, first)

    @endpoint
    def start(self, epoch: int, address: tuple[str, int]) -> None:
        """Start with an empty table."""
        self._executor.start(epoch, address)

    @endpoint
    def stand_still(self, unsent: Sequence[Batch]) -> Stopped | None:
        """Stop after all commands before the request, since a rank was lost."""
        return self._executor.stand_still(unsent)

    @endpoint
    def offer(self, slots: Sequence[int]) -> Offer:
        """Return which values this rank can give to one that was started anew."""
        return self._executor.offer(slots)

    @endpoint
    def recover(self, recovery: Recovery) -> None:
        """Begin again after a loss."""
        self._executor.recover(recovery)

    @endpoint
    def stand(self) -> None:
        """Report if this rank was told to stop and is idle."""
        self._executor.stand()

    @endpoint
    def reached(self) -> None:
        """Answer when all earlier commands were executed."""


class TensorControl(Actor):
    """The actor on each rank that reaches the rank's worker while that executes a command."""

    def __init__(self, name: str) -> None:
        self._name = name

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Start the store for the rendezvous of the ranks; return its address and port."""
        return rendezvous.start(PURPOSE)

    @endpoint
    def halt(self) -> bool:
        """Stop the worker at the next command, and abort its running collective; return whether the worker
        had started at all.
        """
        return executors[self._name].halt()

    @endpoint
    def position(self) -> int | None:
        """Return the number of the command that the worker is at; None if it hasn't begun."""
        return executors[self._name].position()

    @endpoint
    def machine(self) -> tuple[str, str, int]:
        """Return this rank's host, the device of its values, and the free bytes of that device."""
        return machine()

    @endpoint
    def checksums(self, names: Sequence[tuple[str, str]]) -> list[int | None]:
        """Return checksums of what this rank's modules have; see `files.checksums`."""
        return checksums(names)

    @endpoint
    def decide(self, decision: Decision) -> None:
        """Send the waiting worker the decision."""
        executors[self._name].decisions.put(decision)


def names_of_actors(engine: str) -> tuple[str, str]:
    """Return the names of an engine's actors."""
    return f"{engine}-worker", f"{engine}-control"


def spawn(procs: Any, engine: str, port: Port[Report]) -> tuple[Any, Any]:
    """Spawn both actors on processes."""
    worker, control = names_of_actors(engine)
    return procs.spawn(worker, TensorWorker, engine, port), procs.spawn(control, TensorControl, engine)
