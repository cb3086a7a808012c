"""Types of events about ranks, hosts and programs. Nobody answers them."""

from __future__ import annotations

from monarch_nb._protocol.base import Event, Record
from monarch_nb._protocol.debugging import StopPlace
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.hang import RankStacks
from monarch_nb._protocol.healing import Report
from monarch_nb._protocol.ranks import Ticket
from monarch_nb._protocol.resources import MonitoredHost, MonitoredRank
from monarch_nb._protocol.runs import Runs

# --- of ranks


class RankIsUp(Event, frozen=True):
    """Tells the controller that a rank has started and answers; the rank itself sends it."""

    pid: int


class Printed(Record, frozen=True, array_like=True):
    """A stretch of a rank's output: the fields of its `Piece`."""

    proc: int
    rank: int
    piece: tuple[str, int, str, bytes]


class RanksPrinted(Event, frozen=True):
    """Passes what ranks of the sender's host have printed to the controller, in its order."""

    printed: tuple[Printed, ...]


class EndsHere(Event, frozen=True):
    """Tells the controller that ranks of the sender's host have ended."""

    ends: tuple[RankExit, ...]


class RankHeartbeat(Event, frozen=True):
    """Tells the controller that a rank of another host doesn't react, or (no trouble) does again."""

    proc: int
    trouble: str


class RanksEnded(Event, frozen=True):
    """Tells everybody that ranks have ended somewhere; the controller sends it."""

    ends: tuple[RankExit, ...]


class RanksRevived(Event, frozen=True):
    """Tells everybody that ranks are being started again, under their proc ids."""

    procs: tuple[int, ...]


class Renumbered(Event, frozen=True):
    """Tells a rank its new place: the mesh has been given other sizes.

    Attributes:
        extent: of the mesh, encoded.
        procs, hosts: of the mesh.
    """

    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    extent: bytes
    procs: Runs
    hosts: Runs


class CheckpointEpoch(Event, frozen=True):
    """Tells the members of an actor the epoch that they must agree on to save together."""

    actor_id: int
    epoch: int


# --- of hosts


class HostJoined(Event, frozen=True):
    """Tells the controller that a host process has dialled it."""

    hostname: str
    pid: int
    machine: str
    num_cores: int
    num_gpus: int


class Beat(Event, frozen=True):
    """Tells that the sender lives: a host, or the controller.

    Attributes:
        taken: on a link that is resumed (`_wire.resuming`), how many messages have arrived here.
    """

    taken: int = 0


class HostLeaving(Event, frozen=True):
    """Tells the controller that a host process is about to end on purpose."""


class HostLeft(Event, frozen=True):
    """Tells the controller that a host process has finished its work: its last message."""


class LastWord(Event, frozen=True):
    """Tells the controller that a host has switched: its last message by the old connection."""


class HostPreempted(Event, frozen=True):
    """Tells the controller that the sender's machine is about to be taken away by the engine that gave it.

    Attributes:
        job: what has given it: `slurm job 4711`; empty if that isn't known.
    """

    job: str = ""


class ResourcesSeen(Event, frozen=True):
    """Tells the readings of a host: of its ranks, by proc, and of its machine, if those are new."""

    rows: dict[int, MonitoredRank]
    host: MonitoredHost | None


class HostLooked(Event, frozen=True):
    """Tells the controller that a host has taken all its readings anew, as `LookNow` of that `ref` wanted."""

    ref: int


class StacksTaken(Event, frozen=True):
    """Brings the controller the stacks of ranks, by proc, that `TakeStacks` of that `ref` wanted."""

    ref: int
    found: dict[int, RankStacks]


# --- to hosts


class WatchResources(Event, frozen=True):
    """Tells hosts that somebody watches the state of the mesh, or that nobody does any more."""

    on: bool


class LookNow(Event, frozen=True):
    """Has hosts take all their readings now; each answers with `HostLooked`."""

    ref: int


class TakeStacks(Event, frozen=True):
    """Has a host take the stacks of ranks that don't answer; it answers with `StacksTaken`."""

    ref: int
    procs: tuple[int, ...]
    native: bool


class Leave(Event, frozen=True):
    """Tells a host to end: it isn't needed any more. From the relay of an owner's programs: these have left,
    and its key is needed no more.
    """


class TakePlace(Event, frozen=True):
    """Tells a host to begin anew in the place of another one, which is lost."""

    ticket: Ticket


class DialAnew(Event, frozen=True):
    """Tells a host that the mesh is given new keys: it's to dial the controller once more, at another port.
    All goes by its old connection until it's told to switch.

    Attributes:
        controller_key: the controller's public key there.
    """

    port: int
    controller_key: str


class Switch(Event, frozen=True):
    """Tells a host that its next messages come by the connection that it has dialled anew; the last one by
    the old connection.
    """


class Switched(Event, frozen=True):
    """Tells a host that all it has sent by the old connection has arrived, and that it's over."""


# --- of the mesh


class MeshNamed(Event, frozen=True):
    """Tells everybody the name that the mesh has got."""

    name: str


class Reshaped(Event, frozen=True):
    """Tells everybody that a group of ranks has other sizes; `actors`: the procs of those that are on all
    of it."""

    group: str
    procs: tuple[int, ...]
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    hosts: tuple[int, ...]
    actors: dict[int, tuple[int, ...]]


class ActorsHealed(Event, frozen=True):
    """Tells everybody that actors of a group have been made again: handles on them are good."""

    group: str
    actor_ids: tuple[int, ...]


class MeshEnding(Event, frozen=True):
    """Tells programs that the mesh is about to end; `how`, as in: mesh 'dev' was stopped by ..."""

    how: str


# --- of breakpoints, to ranks


class DebugHold(Event, frozen=True):
    """Tells ranks to hold the time-outs of process groups while a peer stands at a breakpoint, or (not
    `on`) to let them count again."""

    on: bool


class DebugSettingsChanged(Event, frozen=True):
    """Says what ranks do at breakpoints and errors from now on."""

    skip: bool
    on_error: bool


# --- to programs


class GroupsKnown(Event, frozen=True):
    """Tells programs all numbers by which records of output name groups of ranks: number by group."""

    groups: dict[str, int]


class RankStopped(Event, frozen=True):
    """Tells programs that a rank stands at a breakpoint; `where`: as in `DebugStopped`."""

    group: str
    rank: int
    where: StopPlace


class UserAsked(Event, frozen=True):
    """Tells a program that a rank wants something typed there; `UserQuestions` returns what."""


class AskedNoMore(Event, frozen=True):
    """Tells a program that ranks don't wait for answers to these questions any more."""

    ids: tuple[int, ...]


class Notice(Event, frozen=True):
    """Tells programs what people should see: a sentence, or what was healed without being asked."""

    group: str
    what: str | Report
