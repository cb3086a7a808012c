"""Injects faults: kills, stops, crashes, starves or slows down ranks, disconnects hosts; at random, but
reproducibly with a given seed.

Example:
    >>> chaos = Chaos(mesh, seed=7)                          # doctest: +SKIP
    >>> for _ in range(20):                                  # doctest: +SKIP
    ...     with chaos.strike() as fault:
    ...         try:
    ...             train_step()
    ...         except MeshError:
    ...             mesh.heal()
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Signal
from monarch_nb.actor.future import Future
from monarch_nb.actor.handle import placement_of, session_of
from monarch_nb.actor.proc_mesh import ProcMesh
from monarch_nb.exceptions import MeshError

LETHAL = ("kill", "segfault", "abort", "exit")
HARMLESS = ("stop", "slow", "memory")
KINDS = (*LETHAL, *HARMLESS)

_SIGNALS = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "abort": signal.SIGABRT}
_HEADROOM_BYTES = 64 << 20
_SLOW_ROUNDS = 200_000


@dataclass(frozen=True)
class Fault:
    """A fault that was injected into a rank.

    Attributes:
        kind: kill, segfault, abort (signals), exit (`os._exit`), stop (SIGSTOP until it's over), slow (a
            thread that computes), memory (an allocation that fails).
        outcome: result of what was run on the rank for it, if anything was.
    """

    kind: str
    rank: int
    pid: int
    outcome: Future[Any] | None = None

    @property
    def is_lethal(self) -> bool:
        """Whether the fault kills the rank."""
        return self.kind in LETHAL


def inject(mesh: ProcMesh, kind: str, rank: int) -> Fault:
    """Inject a fault into a rank; a stopped rank continues after `release`.

    Raises:
        ValueError: for an unknown kind, or a rank that isn't there.
    """
    if kind not in KINDS:
        raise ValueError(f"a fault is one of {', '.join(KINDS)}, not {kind!r}")
    if not 0 <= rank < len(mesh):
        raise ValueError(f"rank {rank} is out of range, 0 to {len(mesh) - 1} would do")
    proc = placement_of(mesh).procs[rank]
    session = session_of(mesh)
    pid = next(row.pid for row in session.request(Status()).procs if row.proc == proc)
    if kind in _SIGNALS or kind == "stop":
        session.request(Signal([proc], int(_SIGNALS.get(kind, signal.SIGSTOP))))
        return Fault(kind, rank, pid)
    work = {"exit": _leave, "slow": _burn, "memory": _starve}[kind]
    one = mesh.flatten("rank").slice(rank=rank)
    return Fault(kind, rank, pid, one.execute(work))


def release(mesh: ProcMesh, fault: Fault) -> None:
    """Let a stopped rank continue."""
    if fault.kind == "stop":
        with suppress(MeshError):
            session_of(mesh).request(Signal([placement_of(mesh).procs[fault.rank]], int(signal.SIGCONT)))


class Chaos:
    """A generator of random faults, one after the other.

    Args:
        mesh: mesh whose ranks are broken.
        seed: seed of the random choice; equal seeds give equal faults.
        kinds: permitted kinds of faults.
    """

    def __init__(self, mesh: ProcMesh, seed: int = 0, kinds: Sequence[str] = KINDS) -> None:
        self.mesh = mesh
        self.random = random.Random(seed)
        self.kinds = tuple(kinds)
        self.faults: list[Fault] = []

    def draw(self) -> tuple[str, int]:
        """Return the kind and the rank of the next random fault, without injecting it."""
        return self.random.choice(self.kinds), self.random.randrange(len(self.mesh))

    def next(self) -> Fault:
        """Inject the next random fault, and return it."""
        fault = inject(self.mesh, *self.draw())
        self.faults.append(fault)
        return fault

    @contextmanager
    def strike(self) -> Iterator[Fault]:
        """Inject the next random fault; a stopped rank continues at the end of the block."""
        fault = self.next()
        try:
            yield fault
        finally:
            release(self.mesh, fault)


@contextmanager
def partition(*links: str) -> Iterator[None]:
    """Disconnect network links of this machine, by name, for the duration of a block. Needs root and `ip`.

    Example:
        >>> with partition("veth1"):                         # doctest: +SKIP
        ...     wait_until_noticed()
    """
    try:
        for link in links:
            subprocess.run(["ip", "link", "set", link, "down"], check=True)
        yield
    finally:
        for link in links:
            subprocess.run(["ip", "link", "set", link, "up"], check=True)


# --- what runs on a rank


def _leave() -> None:
    os._exit(7)


def _burn() -> None:
    def compute() -> None:
        total = 0
        for i in range(_SLOW_ROUNDS):
            total += i * i

    threading.Thread(target=compute, daemon=True).start()


def _starve() -> None:
    """Allocate more memory than a limit permits, so that the allocation fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _HEADROOM_BYTES, before[1]))
    try:
        bytearray(4 * _HEADROOM_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
