"""The specification that a rank is started with: the request of the spawning process, the additions of the
controller and the host process, and the rank's own part.
"""

from __future__ import annotations

from monarch_nb._protocol.base import Record
from monarch_nb._protocol.runs import Runs


class StartCommand(Record, frozen=True):
    """A command of the user's that becomes a rank; see `BootstrapCommand`."""

    program: str
    arg0: str | None = None
    args: list[str] = []
    env: dict[str, str | None] = {}
    inherit_env: bool = True


class GroupSpec(Record, frozen=True):
    """The settings that all ranks of a spawn share, as the spawning program has requested them.

    Attributes:
        group: the spawn's name.
        extent: its sizes, encoded.
        env: environment variables.
        sys_path, cwd, argv0: as the spawning program has them.
        bootstrap: a function of the user's that each calls first, encoded by the spawning program.
        python: the interpreter; None: the host process' own.
        gpu_dimension: whether each rank is to see one GPU.
        bind: CPUs and memory of each rank of a host, as `proc_bind` says.
        commands: the user's, by rank; one, if it's the same for all; none: ranks are forked.
        imports: modules that the zygote imports before it forks them.
    """

    group: str
    extent: bytes
    env: dict[str, str] = {}
    sys_path: list[str] = []
    cwd: str = ""
    argv0: str = ""
    bootstrap: bytes | None = None
    python: str | None = None
    gpu_dimension: bool = False
    bind: list[dict[str, str]] | None = None
    commands: list[StartCommand] = []
    imports: list[str] = []


class GroupPlace(Record, frozen=True):
    """The places of a group's ranks, as the controller knows them when it starts some.

    Attributes:
        procs: all of the group, by rank: as runs, since each host is sent all of them.
        hosts: indices of their hosts.
        mesh: the fields of the mesh's address.
        skip, on_error: behaviour at breakpoints; see `DebugSettings`.
        runs_cells: whether the mesh is one for cells: it has a name, and its programs run some.
        elsewhere: folders as the notebook knows them, and where they lie on the host that is asked.
    """

    procs: Runs
    hosts: Runs
    mesh: tuple[str, str, str, str, str, int, int | None]
    runs_cells: bool = False
    skip: bool = False
    on_error: bool = False
    elsewhere: tuple[tuple[str, str], ...] = ()


class HostFacts(Record, frozen=True):
    """The facts that a host process adds: the directory of its sockets, its name, the GPUs that it has been
    given, and whether an engine's launcher started it.
    """

    directory: str
    hostname: str
    gpus: list[str]
    launched: bool


class SharedSpec(Record, frozen=True):
    """The settings shared by those ranks of a group that are started on one host."""

    group: GroupSpec
    place: GroupPlace
    host: HostFacts


class RankPlace(Record, frozen=True):
    """A rank that is to be started: its place, and environment variables of its own."""

    proc: int
    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    own_env: dict[str, str]


class OwnSpec(Record, frozen=True):
    """The settings of a single rank; `token` stands in the marks of its output."""

    place: RankPlace
    token: str


class RankSpec(Record, frozen=True):
    """The complete specification that a rank is started with."""

    shared: SharedSpec
    own: OwnSpec

    @property
    def group(self) -> GroupSpec:
        """The request of the program that has spawned the rank."""
        return self.shared.group

    @property
    def host(self) -> HostFacts:
        """The facts that the rank's host process has added."""
        return self.shared.host

    @property
    def place(self) -> RankPlace:
        """Its own place."""
        return self.own.place

    @property
    def gpu(self) -> str:
        """The value of CUDA_VISIBLE_DEVICES for this rank; empty if this package doesn't set it."""
        gpus = self.host.gpus
        return gpus[self.place.local_rank % len(gpus)] if gpus and self.group.gpu_dimension else ""
