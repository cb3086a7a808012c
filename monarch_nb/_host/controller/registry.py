"""The controller's registry: the hosts, processes and clients of the mesh, and its groups by name.

Pure data; the controller and its services read and write it in the loop's thread.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monarch_nb._protocol.base import Plain
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.names import GroupRecord
from monarch_nb._protocol.rank_spec import GroupSpec
from monarch_nb._protocol.states import HostState, OnFailure, ProcState, StartMethod
from monarch_nb._shape import Extent, encode_extent
from monarch_nb._wire import address


@dataclass
class Host:
    """A machine of the mesh."""

    index: int
    label: str = ""
    state: HostState = HostState.EXPECTED
    hostname: str = ""
    pid: int = 0
    machine: str = ""
    """Machine on which its pid is valid (`_wire.process.machine_id`)."""
    num_cores: int = 0
    num_gpus: int = 0
    last_beat: float = 0.0
    backlog: list[list[Any]] = field(default_factory=list)
    """Messages for a host that hasn't joined yet."""
    kind: str = ""
    """Kind of job that it came from, if the controller can start another one by itself."""
    generation: int = 0
    """How many processes have had this place before."""
    public_key: str = ""
    endpoint: str = ""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for another process in this place, if the controller starts it."""
    why_lost: str = ""
    """Reason why it is lost, as displayed after its name."""
    taken: str = ""
    """Reason why it is being taken away, if it was told to end: the end of its ranks counts as a loss
    then.
    """
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Folders of the notebook, and their paths on this machine."""

    def expect_successor(self) -> None:
        """Expect another process in the place of one that is lost: what was kept for that is void."""
        self.generation += 1
        self.state, self.backlog, self.taken, self.why_lost = HostState.EXPECTED, [], "", ""


@dataclass
class Proc:
    """A rank, as the controller knows it."""

    proc: int
    group: str
    rank: int
    state: ProcState = ProcState.STARTING
    pid: int = 0
    end: RankExit | None = None
    trouble: str = ""
    """Reason why it is unresponsive, if it is."""
    local_rank: int = 0
    own_env: dict[str, str] = field(default_factory=dict)
    """Environment variables that it was given after its start: a process that replaces it gets them, too."""


@dataclass
class Policy:
    """The failure policy of a group: the action when one of its ranks dies.

    Attributes:
        on_failure: stop (nothing: calls raise until somebody heals it), heal, shrink, or call: a program
            decides.
        max_restarts: heals within `window_s`; beyond that it's "stop".
        heals: times of the last heals.
    """

    on_failure: OnFailure = OnFailure.STOP
    max_restarts: int = 5
    window_s: float = 600.0
    heals: list[float] = field(default_factory=list)


@dataclass
class Group:
    """The ranks of one spawn, in the order of its extent.

    Attributes:
        spec: what all its ranks are started with.
        creator: proc and actor (0: none) that own it.
    """

    name: str
    extent: Extent
    procs: list[int]
    spec: GroupSpec
    method: StartMethod
    policy: Policy = field(default_factory=Policy)
    creator: tuple[int, int] = (0, 0)

    @property
    def context(self) -> bytes:
        """The extent, encoded as messages carry it."""
        return encode_extent(self.extent)

    def record(self, env: Mapping[str, str] | None = None) -> GroupRecord:
        """Return the record of the group, of which handles on it are made."""
        return GroupRecord(
            self.name,
            tuple(self.procs),
            tuple(self.extent.labels),
            tuple(self.extent.sizes),
            self.hosts,
            dict(env or {}),
        )

    @property
    def hosts(self) -> tuple[int, ...]:
        """Indices of its hosts, in the order of its ranks."""
        return tuple(dict.fromkeys(address.host_of(p) for p in self.procs))

    def places(self, entries: Iterable[Proc]) -> list[dict[str, int]]:
        """Return the places of ranks: their numbers on hosts and in the group, and how many there are."""
        num_on = Counter(map(address.host_of, self.procs))
        return [
            {
                "rank": each.rank,
                "local_rank": each.local_rank,
                "local_world_size": num_on[address.host_of(each.proc)],
                "world_size": len(self.procs),
            }
            for each in entries
        ]


@dataclass
class Client:
    """A program that uses the mesh."""

    proc: int
    pid: int
    what: str
    number: int
    listens: bool = True
    """Whether it shows output of actors."""
    observes: bool = False
    """Whether it only observes: then it doesn't keep the mesh alive."""
    pidfd: int = -1
    kernel: str = ""
    """Jupyter's id of its kernel."""
    used: float = 0.0
    """Time at which it has chosen this mesh as the one it uses."""


@dataclass
class Waiting:
    """A request that is answered once its procs (or hosts) are up; or a callback of the controller itself,
    `done`.
    """

    src: int
    ref: int
    left: set[int]
    done: Callable[[], None] | None = None


class Registry:
    """The hosts, ranks and programs of one mesh; only the controller has one."""

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}
        self.procs: dict[int, Proc] = {}
        self.groups: dict[str, Group] = {}
        self.clients: dict[int, Client] = {}
        self.names: dict[str, Plain] = {}
        self.mesh: GroupRecord | None = None
        """The ranks that have the mesh's name, once they have started."""
        self.waiting: list[Waiting] = []
        self._hosts = itertools.count()
        self._locals: dict[int, itertools.count[int]] = {}
        self.started = time.time()

    def new_host(self, label: str, kind: str = "") -> Host:
        """Register a host that is expected to join."""
        host = Host(next(self._hosts), label, kind=kind)
        self.hosts[host.index] = host
        self._locals[host.index] = itertools.count(1)
        return host

    def new_procs(self, host: int, group: str, ranks: list[int]) -> list[Proc]:
        """Enter new ranks on `host` and give them ids."""
        procs = [Proc(address.proc_id(host, next(self._locals[host])), group, r) for r in ranks]
        self.procs.update((p.proc, p) for p in procs)
        return procs

    def proc_is_up(self, proc: int, pid: int) -> list[Waiting]:
        """Record that a rank runs; return the requests that this completes."""
        entry = self.procs.get(proc)
        if entry is not None and entry.state == ProcState.STARTING:
            entry.state, entry.pid = ProcState.RUNNING, pid
        return self._settle(proc)

    def proc_has_ended(self, end: RankExit, *, settle: bool = True) -> list[Waiting]:
        """Record a rank's end; return the requests that this completes. A restarting one completes none."""
        entry = self.procs.get(end.proc)
        if entry is not None:
            entry.state = ProcState.STOPPED if end.stopped else ProcState.LOST
            entry.pid, entry.end, entry.trouble = end.pid, end, ""
        return self._settle(end.proc) if settle else []

    def host_is_up(self, index: int) -> list[Waiting]:
        """Return the requests that a host's joining completes."""
        return self._settle(address.host_proc(index))

    def _settle(self, who: int) -> list[Waiting]:
        done = []
        for waiting in self.waiting:
            waiting.left.discard(who)
            if not waiting.left:
                done.append(waiting)
        self.waiting = [w for w in self.waiting if w.left]
        return done

    def lives(self, proc: int) -> bool:
        """Say whether a program or a rank still exists."""
        entry = self.procs.get(proc)
        return proc in self.clients or (entry is not None and entry.end is None)

    def alive(self) -> list[Proc]:
        """Return the ranks that haven't ended."""
        return [p for p in self.procs.values() if p.end is None]

    def alive_on(self, host: int) -> list[Proc]:
        """Return the ranks of a host that haven't ended."""
        return [p for p in self.alive() if address.host_of(p.proc) == host]

    def by_rank(self, procs: Iterable[int]) -> dict[int, int]:
        """Return procs by their ranks."""
        return {self.procs[p].rank: p for p in procs}

    def group(self, name: str) -> Group:
        """Return a group.

        Raises:
            LookupError: if there's none of that name.
        """
        if name not in self.groups:
            raise LookupError(f"this mesh has no ranks {name!r}; it has {', '.join(self.groups)}")
        return self.groups[name]
