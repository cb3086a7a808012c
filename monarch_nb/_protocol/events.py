"""Types of events, which nobody answers: news of ranks, hosts and programs."""

from __future__ import annotations

from monarch_nb._protocol.base import Event
from monarch_nb._protocol.debugging import StopPlace
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.hang import RankStacks
from monarch_nb._protocol.healing import Report
from monarch_nb._protocol.ranks import Ticket
from monarch_nb._protocol.resources import MonitoredHost, MonitoredRank

# --- of ranks


class RankIsUp(Event, frozen=True):
    """A rank answers; sent by itself."""

    pid: int


class RankPrinted(Event, frozen=True):
    """A rank of another host has printed something: the fields of its `Piece`."""

    rank: int
    piece: tuple[str, int, str, bytes]


class RankEnded(Event, frozen=True):
    """A rank of another host has ended."""

    end: RankExit


class RankHeartbeat(Event, frozen=True):
    """A rank of another host doesn't react, or (no trouble) does again."""

    proc: int
    trouble: str


class RanksEnded(Event, frozen=True):
    """Ranks have ended somewhere; the controller tells everybody."""

    ends: tuple[RankExit, ...]


class RanksRevived(Event, frozen=True):
    """Ranks are being started again, under their proc ids."""

    procs: tuple[int, ...]


class Renumbered(Event, frozen=True):
    """The rank that is told has another place: the mesh has been given other sizes.

    Attributes:
        extent: of the mesh, encoded.
        procs: of the mesh.
    """

    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    extent: bytes
    procs: tuple[int, ...]


class CheckpointEpoch(Event, frozen=True):
    """Tells the members of an actor the epoch that they must agree on to save together."""

    actor_id: int
    epoch: int


# --- of hosts


class HostJoined(Event, frozen=True):
    """A host process has dialled the controller."""

    hostname: str
    pid: int
    machine: str
    num_cores: int
    num_gpus: int


class Beat(Event, frozen=True):
    """Whoever sends it lives: a host, or the controller."""


class HostLeaving(Event, frozen=True):
    """A host process is about to end, on purpose."""


class HostLeft(Event, frozen=True):
    """A host process says its last word."""


class HostPreempted(Event, frozen=True):
    """A machine is about to be taken away.

    Attributes:
        job: what has given it: `slurm job 4711`; empty if that isn't known.
    """

    job: str = ""


class ResourcesSeen(Event, frozen=True):
    """Says what a host has seen of its ranks, by proc, and of its machine, if that's new."""

    rows: dict[int, MonitoredRank]
    host: MonitoredHost | None


class HostLooked(Event, frozen=True):
    """A host has looked at everything, as it was told under `ref`."""

    ref: int


class StacksTaken(Event, frozen=True):
    """Stacks of ranks, by proc, as they were wanted under `ref`."""

    ref: int
    found: dict[int, RankStacks]


# --- to hosts


class WatchResources(Event, frozen=True):
    """Somebody watches the state of the mesh, or nobody does any more."""

    on: bool


class LookNow(Event, frozen=True):
    """The controller wants to know how everything is now."""

    ref: int


class TakeStacks(Event, frozen=True):
    """The controller wants the stacks of ranks that don't answer."""

    ref: int
    procs: tuple[int, ...]
    native: bool


class Leave(Event, frozen=True):
    """The host isn't needed any more."""


class TakePlace(Event, frozen=True):
    """Another host is lost: the one that is told begins anew in its place."""

    ticket: Ticket


# --- of the mesh


class MeshNamed(Event, frozen=True):
    """The mesh has got a name."""

    name: str


class Reshaped(Event, frozen=True):
    """A group of ranks has other sizes; `actors`: the procs of those that are on all of it."""

    group: str
    procs: tuple[int, ...]
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    hosts: tuple[int, ...]
    actors: dict[int, tuple[int, ...]]


class ActorsHealed(Event, frozen=True):
    """Actors of a group have been made again: handles on them are good."""

    group: str
    actor_ids: tuple[int, ...]


class MeshEnding(Event, frozen=True):
    """The mesh is about to end; `how`, as in: mesh 'dev' was stopped by ..."""

    how: str


# --- of breakpoints, to ranks


class DebugHold(Event, frozen=True):
    """A peer stands at a breakpoint: hold the time-outs of process groups; or none does any more."""

    on: bool


class DebugSettingsChanged(Event, frozen=True):
    """Says what ranks do at breakpoints and errors from now on."""

    skip: bool
    on_error: bool


# --- to programs


class GroupsKnown(Event, frozen=True):
    """Numbers of groups of ranks in output records, by name."""

    groups: dict[str, int]


class RankStopped(Event, frozen=True):
    """A rank stands at a breakpoint; `where`: as in `DebugStopped`."""

    group: str
    rank: int
    where: StopPlace


class UserAsked(Event, frozen=True):
    """A rank wants something typed: see `UserQuestions`."""


class AskedNoMore(Event, frozen=True):
    """Ranks don't wait for answers to these questions any more."""

    ids: tuple[int, ...]


class Notice(Event, frozen=True):
    """Something that people should see: a sentence, or what was healed without being asked."""

    group: str
    what: str | Report
