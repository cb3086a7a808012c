"""Types of requests from programs to the controller: to connect, to own the mesh, to get its state, to end
it.
"""

from __future__ import annotations

from monarch_nb._protocol.base import Plain, Record, Request
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.roles import Role
from monarch_nb._protocol.states import HostState, OnFailure, ProcState


class Welcome(Record, frozen=True):
    """The controller's answer to a program that has just connected.

    Attributes:
        mesh: the fields of the mesh's address.
        groups: numbers of groups of ranks in output records, by name.
        role: role of the program.
    """

    pid: int
    name: str
    mesh: tuple[str, str, str, str, str, int, int | None]
    groups: dict[str, int]
    role: Role = Role.OWNER


class Hello(Request[Welcome], frozen=True):
    """Let a program in that has just connected.

    Attributes:
        what: name by which people know it.
        number: part of the origins of its calls.
        listens: whether it shows output of ranks.
        observes: whether it only observes.
        kernel: Jupyter's id of its kernel.
    """

    pid: int
    what: str
    number: int
    listens: bool
    observes: bool = False
    kernel: str = ""


class Leaving(Request[None], frozen=True):
    """Take note that the program is about to go, and shows nothing any more."""


class InUse(Request[None], frozen=True):
    """Take note that a notebook uses this mesh from now on, of those that it's connected to."""


class Goodbye(Request[None], frozen=True):
    """Take note that the program goes."""


class ShutDown(Request[None], frozen=True):
    """Stop the mesh: its ranks, its hosts, the controller."""


class SettleOutput(Request[None], frozen=True):
    """Pass on what ranks of the controller's machine have written before now."""


# --- the registry


class HostRow(Record, frozen=True):
    """A machine of the mesh, as the controller knows it."""

    index: int
    label: str
    state: HostState
    hostname: str
    pid: int
    num_cores: int
    num_gpus: int
    kind: str
    generation: int
    endpoint: str


class ProcRow(Record, frozen=True):
    """A process of a rank, as the controller knows it."""

    proc: int
    group: str
    rank: int
    state: ProcState
    pid: int
    end: RankExit | None
    trouble: str


class ProgramRow(Record, frozen=True):
    """A program that uses the mesh."""

    pid: int
    what: str


class MeshRecord(Record, frozen=True):
    """The contents of the controller's registry.

    Attributes:
        healing: groups that are being healed or resized.
        policies: failure policy by group.
        warm: whether the zygote has imported what ranks need.
    """

    name: str
    pid: int
    zygote_pid: int | None
    warm: bool
    started: float
    idle_timeout_s: float | None
    num_cells: int
    healing: list[str]
    policies: dict[str, OnFailure]
    journal: str
    journal_trouble: str
    hosts: list[HostRow]
    clients: list[ProgramRow]
    procs: list[ProcRow]
    names: dict[str, Plain]


class Status(Request[MeshRecord], frozen=True):
    """Return the registry."""


# --- owner and lifetime


class ClaimName(Request[bool], frozen=True):
    """Take the right to a name, by its file; answers whether it was free."""

    path: str


class Adopt(Request[None], frozen=True):
    """Become a named mesh that belongs to its user.

    Attributes:
        owner_pid: a process that it ends with nevertheless.
    """

    name: str
    idle_timeout_s: float | None
    connection_file: str
    env: dict[str, str]
    dims: dict[str, int]
    rank_set: str
    journal: str
    owner_pid: int | None = None


class SetLease(Request[None], frozen=True):
    """Say after how long without program and running cell the mesh ends; the time begins anew."""

    idle_timeout_s: float


class Cost(Record, frozen=True):
    """The cost of hosts that an engine has given, as of one moment."""

    num_gpus: int
    """GPUs of the hosts that there are."""
    usd: float
    """What all hosts have cost until `counted_at`, also those that were given back."""
    usd_per_hour: float
    """What the hosts that there are cost."""
    counted_at: float

    def usd_until(self, now: float) -> float:
        """Return the cost up to a time in seconds since the epoch.

        >>> Cost(num_gpus=8, usd=2.0, usd_per_hour=24.0, counted_at=1000.0).usd_until(1600.0)
        6.0
        """
        return self.usd + self.usd_per_hour * max(0.0, now - self.counted_at) / 3600


class SetTimeLimit(Request[None], frozen=True):
    """Say when an engine takes hosts of the mesh away, and what they have cost.

    Attributes:
        ends_at: seconds since the epoch; None: that isn't limited.
        job: the job that ends then: `slurm job 4711`.
        cost: None: the hosts have no price that is known.
    """

    ends_at: float | None
    job: str
    cost: Cost | None = None


class Limit(Record, frozen=True):
    """The time limit of hosts: when they are taken away (seconds since the epoch, None if that isn't known),
    and how long before that programs are told (None: they aren't).
    """

    ends_at: float | None
    notice_s: float | None


class SetNotice(Request[Limit], frozen=True):
    """Say how long before hosts are taken away it's told, or (without `changes`) only ask what holds."""

    notice_s: float | None = None
    changes: bool = False


class SetOwner(Request[None], frozen=True):
    """End the mesh with a process, or (None) with none."""

    owner_pid: int | None
