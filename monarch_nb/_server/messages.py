"""Types of the messages over the WebSocket, of the request to start a mesh, and of the clusters to start one
on: `labextension/src/state.ts` is generated from them.

What the server says has a tag, its `type`. All but the first message belong to a watch: `id` is that of
whoever watches, who answers with `Taken`. What a page says has another tag, its `op`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from monarch_nb._protocol.base import Record
from monarch_nb._protocol.debugging import Stop
from monarch_nb._protocol.logs import LogLine
from monarch_nb._protocol.programs import Cost
from monarch_nb.status import HostStatus, MeshStatus, MeshSummary, RankStatus
from monarch_nb.status.delta import HeadChange


class _Message(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """The base of messages of the server."""


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """The first message of a connection."""

    version: str
    protocol: int


class WatchMessage(_Message, frozen=True, kw_only=True):
    """A change of the object that is watched."""

    id: int = 0


class Meshes(WatchMessage, frozen=True, kw_only=True, tag="meshes"):
    """All meshes, whenever that changes."""

    meshes: list[MeshSummary]


AllocationState = Literal["queued", "granted", "leaving", "ended", "failed"]


class AllocationRow(Record, frozen=True):
    """A request for hosts of an engine: it waits for them, or has them."""

    name: str
    """The mesh that the hosts are for."""
    job: str
    """What the engine calls it, and where: "slurm job 4711 on lab"."""
    hosts: str
    """How many were asked for: "4" or "2..8"."""
    num_hosts: int
    """How many it has."""
    state: AllocationState
    """failed: its ranks could not be started."""
    reason: str
    """Why it waits, or how it ended, in the engine's own words."""
    trouble: str
    """What keeps it from ever starting, with the remedy; empty if nothing does."""
    submitted_at: float
    starts_at: float | None
    """When the engine supposes that it starts."""
    ends_at: float | None
    is_up: bool
    """Whether the mesh's ranks have been started."""
    is_waited_for: bool
    """Whether this server waits for the hosts, to start ranks on them."""
    cost: Cost | None = None
    """What its hosts have cost; None: no price is known, or none was granted yet."""


class Allocations(WatchMessage, frozen=True, kw_only=True, tag="allocations"):
    """All requests for hosts of engines, whenever that changes."""

    allocations: list[AllocationRow]


class Status(WatchMessage, frozen=True, kw_only=True, tag="status"):
    """A mesh's state."""

    status: MeshStatus


class Delta(WatchMessage, frozen=True, kw_only=True, tag="delta"):
    """The changes of a mesh's state."""

    mesh: HeadChange
    hosts: tuple[HostStatus, ...]
    ranks: tuple[RankStatus, ...]


class Stops(WatchMessage, frozen=True, kw_only=True, tag="debug"):
    """The threads stopped in the debugger, sent whenever they change."""

    stops: list[Stop]


class Log(WatchMessage, frozen=True, kw_only=True, tag="log"):
    """New lines of a log, and the position of their end."""

    lines: list[LogLine]
    after: int


class Gone(WatchMessage, frozen=True, kw_only=True, tag="gone"):
    """The message that ends a watch because the mesh has ended."""

    reason: str


class Failed(WatchMessage, frozen=True, kw_only=True, tag="error"):
    """The message that a watch couldn't begin."""

    message: str


ServerMessage = Hello | Meshes | Allocations | Status | Delta | Stops | Log | Gone | Failed


# --- messages of a page


class PageMessage(msgspec.Struct, frozen=True, tag_field="op", kw_only=True):
    """A message of a page about one of its watches, whose number the page has chosen."""

    id: int


class WatchMeshes(PageMessage, frozen=True, kw_only=True, tag="watch"):
    """Watch the list of meshes."""

    what: Literal["meshes"] = "meshes"


class WatchAllocations(PageMessage, frozen=True, kw_only=True, tag="watch"):
    """Watch the requests for hosts of engines."""

    what: Literal["allocations"] = "allocations"


class WatchStatus(PageMessage, frozen=True, kw_only=True, tag="watch"):
    """Watch a mesh's state."""

    what: Literal["status"] = "status"
    mesh: str


class WatchDebug(PageMessage, frozen=True, kw_only=True, tag="watch"):
    """Watch the stops in the debugger."""

    what: Literal["debug"] = "debug"
    mesh: str


class WatchLogs(PageMessage, frozen=True, kw_only=True, tag="watch"):
    """Watch what ranks print."""

    what: Literal["logs"] = "logs"
    mesh: str
    ranks: str = "all"
    """A rank set as in 0-3,7; empty: all."""
    grep: str = ""
    after: int | None = None
    """The position after which the lines begin; None: from now on."""


class Unwatch(PageMessage, frozen=True, kw_only=True, tag="unwatch"):
    """End a watch."""


class Taken(PageMessage, frozen=True, kw_only=True, tag="taken"):
    """Confirm that the last message of a watch was processed: the next one may be sent."""


WatchRequest = WatchMeshes | WatchAllocations | WatchStatus | WatchDebug | WatchLogs
ClientMessage = WatchRequest | Unwatch | Taken

Job = Literal["local", "process"]
ProcessGroup = Literal["", "auto", "nccl", "gloo"]


class StartRequest(msgspec.Struct, frozen=True):
    """A mesh to start."""

    name: str
    dims: tuple[tuple[str, int], ...]
    """Sizes of the named dimensions on each host: [["gpus", 4]]. Empty: one rank per GPU, or per core."""
    num_hosts: int
    """How many hosts; 0: this machine itself."""
    job: Job
    idle_timeout: str
    """As in "8h"; the mesh ends after that long without a client."""
    process_group: ProcessGroup = ""
    """Empty: none; auto: what fits the ranks' devices."""
    on: str = ""
    """A profile of clusters.toml, or an engine: hosts are asked for there. Empty: as `job` says."""
    hosts: str = ""
    """With `on`: how many, as in "4" or "2..8", or their names; empty: as the profile says."""
    gpus: int = 0
    """With `on`: GPUs of each host; 0: as the profile says."""
    time: str = ""
    """With `on`: for how long, as in "2h"; empty: as the profile says."""


class Cluster(Record, frozen=True):
    """A place where hosts can be asked for: a profile of clusters.toml, or an engine without one."""

    name: str
    engine: str
    is_profile: bool
    why_not: str
    """Why it can't be used here, and what to type; empty if it can."""
    hosts: str = ""
    """How many it gives, or their names, unless told otherwise; empty: one."""
    gpus: int | None = None
    """GPUs of each host; None: what a host gets."""
    time_s: float | None = None
    """For how long; None: as long as the engine gives."""
    partition: str = ""
    usd_per_gpu_hour: float | None = None
