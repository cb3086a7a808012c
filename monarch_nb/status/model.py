"""The snapshot of a mesh as data: everything that displays its state renders this.

The controller makes it (`_host/controller/status_publisher`), `Mesh.status()` returns it, and text, widget,
server extension, sidebar and command line show it. Times are seconds since the epoch, durations seconds,
sizes bytes, shares per cent; what isn't known is None.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import msgspec

from monarch_nb._protocol.base import Record
from monarch_nb._protocol.programs import Cost
from monarch_nb._protocol.readers import reader_of
from monarch_nb._protocol.resources import NO_HISTORY, Collective, GpuStatus, History, Transfers
from monarch_nb._protocol.states import HostState, OnFailure, RankState
from monarch_nb._shape import format_ranks
from monarch_nb.status.text import status_text

STATES = tuple(RankState)
TROUBLED = (RankState.LOST, RankState.UNRESPONSIVE, RankState.STOPPED)


class HostStatus(Record, frozen=True):
    """The state of a machine of a mesh."""

    index: int
    hostname: str
    state: HostState
    pid: int
    num_cores: int
    num_gpus: int
    machine: str = ""
    """Id of the machine that it's a process of: several hosts may share one. Empty if it hasn't joined."""
    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    gpus: tuple[GpuStatus, ...] = ()
    history: History = NO_HISTORY
    environment: str = ""
    """Start of the id of the environment that `%mesh sync --env` has given it; empty: it has its own."""
    differs: str = ""
    """In what its packages, or its copy of the workspace, differ from the notebook's, with what to type."""


class RankStatus(Record, frozen=True):
    """The state of one rank."""

    rank: int
    host: int
    """Index of its host, which isn't its position among the mesh's hosts."""
    pid: int
    state: RankState
    reason: str = ""
    """Why it's lost or unresponsive, in words; empty else."""
    doing: str = ""
    """What it's busy with: "cell #17", "Trainer.step"; empty if idle."""
    since: float = 0.0
    """Since when it's in this state."""
    cell: int | None = None
    """Number of the cell that runs, in the journal."""
    line: str = ""
    """Where it stands: "In [3], line 4: loss.backward()"; empty if not known."""
    collective: Collective | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    """Proportional set size: memory that it shares is divided by how many share it."""
    gpus: tuple[int, ...] = ()
    """Indices of its host's GPUs that are its own."""
    gpu_memory_bytes: int | None = None
    transfers: tuple[Transfers, ...] = ()
    """What it has moved through the data plane, by path."""
    last_line: str = ""
    """What it has printed last."""
    num_queued: int = 0
    """Messages and cells that wait for it."""
    cells_waiting: tuple[int, ...] = ()
    """Numbers of the cells among them, the next one first."""


class MeshHead(Record, frozen=True):
    """The state of a mesh without its hosts and ranks."""

    name: str
    pid: int
    started: float
    sizes: tuple[tuple[str, int], ...]
    """Named dimensions, outermost first; ranks are in row-major order."""
    idle_timeout_s: float | None
    """After how long without a client it ends; None: it ends with its program."""
    clients: tuple[str, ...]
    """Who is connected: "notebook PATH (pid N)"."""
    num_cells: int = 0
    """How many cells run or wait."""
    journal: str = ""
    """Directory of its journal."""
    journal_trouble: str = ""
    """Why the journal can't be written just now; empty if it can."""
    lease_left_s: float | None = None
    """How long until it ends if nobody comes; None while a client or a cell holds it."""
    is_healing: bool = False
    """Whether lost ranks are being put back just now."""
    on_failure: OnFailure = OnFailure.STOP
    """What is done when a rank dies."""
    versions: Mapping[str, str] = {}
    """Of Python and packages."""
    environment: str = ""
    """Short hash of versions and variables; equal for equal environments."""
    owner_pid: int | None = None
    """The process that it ends with, as meshes do that have been started --with-kernel."""
    ends_at: float | None = None
    """When an engine takes its hosts away, if that's known."""
    job: str = ""
    """What the engine calls its hosts: "slurm job 4711 on lab"; empty if they aren't an engine's."""
    cost: Cost | None = None
    """What its hosts have cost; None: no price is known."""
    kernels: Mapping[str, float] = {}
    """Jupyter's ids of the kernels that use it, and when each has made it the mesh that it uses."""


class MeshStatus(MeshHead, frozen=True, kw_only=True):
    """The state of a mesh at one moment."""

    hosts: tuple[HostStatus, ...]
    ranks: tuple[RankStatus, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> MeshStatus:
        """Return the snapshot that `as_dict` has described.

        Raises:
            msgspec.ValidationError: naming the field that isn't as it should be.
        """
        reader_of(cls)
        return msgspec.convert(data, cls)

    def as_dict(self) -> dict[str, Any]:
        """Return this as plain data, for JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def ranks_by_state(self) -> dict[str, str]:
        """Return the rank set in each state."""
        found: dict[str, list[int]] = {}
        for rank in self.ranks:
            found.setdefault(rank.state, []).append(rank.rank)
        return {state: format_ranks(found[state]) for state in STATES if state in found}

    @property
    def health(self) -> str:
        """ok, busy, or trouble: ranks or hosts are lost, or don't react."""
        if any(r.state in TROUBLED for r in self.ranks) or any(h.state == HostState.LOST for h in self.hosts):
            return "trouble"
        return "busy" if any(r.state in (RankState.BUSY, RankState.DEBUGGING) for r in self.ranks) else "ok"

    def summary(self) -> MeshSummary:
        """Return the row that stands for it in a list."""
        states: dict[str, int] = {}
        for rank in self.ranks:
            states[rank.state] = states.get(rank.state, 0) + 1
        return MeshSummary(self.name, self.pid, self.sizes, states, "", self.kernels)

    def text(self) -> str:
        """Return this as plain text, one line for what is equal."""
        return status_text(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"


class MeshSummary(Record, frozen=True):
    """One row of the list of meshes."""

    name: str
    pid: int
    sizes: tuple[tuple[str, int], ...] = ()
    states: Mapping[str, int] = {}
    """How many ranks are in each state."""
    trouble: str = ""
    """Why it can't be talked to (another version, no answer); empty if all is well."""
    kernels: Mapping[str, float] = {}
    """Jupyter's ids of the kernels that use it, and when each has made it the one that it uses."""
    waits: bool = False
    """Whether it has no ranks yet, because it's being started or waits for its hosts."""
