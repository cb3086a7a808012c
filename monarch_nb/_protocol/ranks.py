"""Types of requests that start, stop and interrupt ranks and hosts."""

from __future__ import annotations

from monarch_nb._protocol.base import Record, Request
from monarch_nb._protocol.rank_spec import GroupPlace, GroupSpec, RankPlace
from monarch_nb._protocol.states import StartMethod


class Spawn(Request[list[int]], frozen=True):
    """Start `per_host` ranks on each of `hosts`, as a group; answers with their proc ids at once.

    Attributes:
        spec: what all of them are started with.
        method: fork or exec.
        force: whether to start more than there's room for.
        creator_actor: the actor that owns them; 0: the process.
    """

    hosts: list[int]
    per_host: int
    group: str
    spec: GroupSpec
    method: StartMethod
    force: bool = False
    creator_actor: int = 0


class SetProcEnvironment(Request[None], frozen=True):
    """Remember what environment variables ranks were given, by proc, for those that take their places."""

    variables: dict[int, dict[str, str]]


class WaitProcs(Request[None], frozen=True):
    """Wait until ranks are up or have ended."""

    procs: list[int]


class WaitHosts(Request[None], frozen=True):
    """Wait until hosts have joined."""

    hosts: list[int]


class Restart(Request[None], frozen=True):
    """Kill ranks and start them anew at their places; answered once they're up. `rank_set` is for the
    journal.
    """

    procs: list[int]
    rank_set: str = ""


class Stop(Request[None], frozen=True):
    """Stop ranks; answered once they have ended."""

    procs: list[int]
    grace_s: float


class Signal(Request[None], frozen=True):
    """Send a signal to ranks."""

    procs: list[int]
    number: int


class InterruptCell(Request[bool], frozen=True):
    """Interrupt a cell; asked once more, the next step is taken at once. False if it's over."""

    n: int


class Interrupt(Request[None], frozen=True):
    """Interrupt whatever runs on ranks: cells, or functions on their main threads. `rank_set` is for the
    journal.
    """

    procs: list[int]
    rank_set: str = ""


class AbortCall(Request[dict[int, int]], frozen=True):
    """Abort collectives on ranks whose actors don't react to an interrupt; answered once done, with how many
    backends were aborted, by rank.
    """

    procs: list[int]


# --- hosts


class Ticket(Record, frozen=True):
    """The data that a host process needs to dial the controller and take a place.

    Attributes:
        controller: the address to dial.
        controller_key: the controller's public key; `public`, `secret`: a pair for the host.
    """

    host: int
    generation: int
    label: str
    controller: str
    controller_key: str
    public: str
    secret: str


class Tickets(Request[list[Ticket]], frozen=True):
    """Return tickets for `num` new hosts, with which they dial the controller.

    Attributes:
        bind: where the controller listens for them; empty: on this machine only.
        kind: what sort of job they come from, if the controller can start another by itself.
        env: environment variables for another process in such a place.
    """

    num: int
    labels: list[str] = []
    bind: str = ""
    kind: str = ""
    env: dict[str, str] = {}


class StopHosts(Request[None], frozen=True):
    """Have hosts leave; answered when they have."""

    hosts: list[int]


# --- to any host process, from the controller


class StartRanks(Request[None], frozen=True):
    """Start ranks of a group on the host that is asked."""

    ranks: list[RankPlace]
    spec: GroupSpec
    place: GroupPlace
    method: StartMethod


class StopRanks(Request[None], frozen=True):
    """Stop ranks of the host that is asked."""

    procs: list[int]
    grace_s: float


class SignalRanks(Request[None], frozen=True):
    """Send a signal to ranks of the host that is asked.

    Attributes:
        cell: if given, the signal is meant for that cell: ranks that are seen to do something else just now
            are spared.
    """

    procs: list[int]
    number: int
    cell: int = 0
