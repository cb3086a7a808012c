"""The class Mesh: a ProcMesh with a name, cells, variables, a journal, and a lifetime of its own.

Each part of a mesh is a class of its own (`Cells`, `Namespace`, `Debugging` ...), and what users type most
often is also a name of the mesh: `mesh.run(...)` is `mesh.cells.run(...)`. The part has the code, and the
text that `mesh.run?` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from monarch_nb._client.dashboard import dashboard_url
from monarch_nb._client.heal_report import HealReport
from monarch_nb._client.session import Session
from monarch_nb._protocol.names import GroupRecord
from monarch_nb._reload import SyncMode
from monarch_nb._shape import Extent, Shape, pick_ranks
from monarch_nb.actor.placement import Placement
from monarch_nb.actor.proc_mesh import HEAL_S, ProcMesh, part_at
from monarch_nb.mesh import picture
from monarch_nb.mesh.actors import Actors
from monarch_nb.mesh.cells import Cells
from monarch_nb.mesh.code import Code
from monarch_nb.mesh.debugging import Debugging
from monarch_nb.mesh.delegate import delegate
from monarch_nb.mesh.history import History
from monarch_nb.mesh.life import Life
from monarch_nb.mesh.namespace import Namespace
from monarch_nb.mesh.tasks import Tasks

if TYPE_CHECKING:
    from monarch_nb.profile import Profile

R = TypeVar("R")


class Mesh(ProcMesh):
    """A named mesh: a `ProcMesh` that also runs cells.

    Attributes:
        last_error: the error of the last cell that failed, with all its failures.
        last_profile: the profile of the last cell that was profiled.
        when_stopped: called with the reason when this program stops the mesh.
        actors: the actors that run on it, by name.
        cells: the runner of cells.
        tasks: the distribution of many small tasks over the ranks.
        variables: the variables of cells on its ranks.
        code: the code that its ranks run.
        journal: the record of what ran on it.
        debugging: the diagnosis of problems.
        life: its state, lifetime and healing.

    Example:
        >>> mesh = start("dev", {"gpus": 4})          # doctest: +SKIP
        >>> mesh.push({"lr": 0.1})                     # doctest: +SKIP
        >>> mesh.run("print(rank, lr)")                # doctest: +SKIP
        >>> mesh.stop().get()                          # doctest: +SKIP
    """

    def __init__(self, name: str, session: Session, record: GroupRecord) -> None:
        extent = Extent(record.labels, record.sizes)
        placement = Placement(tuple(record.procs), Shape.full(extent), record.group, tuple(record.hosts))
        super().__init__(placement, session.transport)
        self._name = name
        self.last_error: BaseException | None = None
        self.last_profile: Profile | None = None
        self.when_stopped: list[Callable[[str], None]] = []
        self.actors = Actors(self)
        self.cells = Cells(self)
        self.tasks = Tasks(self)
        self.variables = Namespace(self)
        self.code = Code(self)
        self.journal = History(self)
        self.debugging = Debugging(self)
        self.life = Life(self)

    @property
    def name(self) -> str:
        """The name that `%mesh start` gave it."""
        return self._name

    def __repr__(self) -> str:
        return f"<Mesh {self._name!r}: {self.extent}>"

    # --- ranks

    def select(self, ranks: str | Sequence[int]) -> tuple[int, ...]:
        """Return ranks from a rank set such as `0-3,7` or `hosts=0,gpus=::2`."""
        return pick_ranks(ranks, self.extent)

    def part(self, ranks: str | Sequence[int]) -> ProcMesh:
        """Return some ranks as a mesh of one dimension."""
        return part_at(self, self.select(ranks))

    def living_ranks(self) -> tuple[int, ...]:
        """Return the ranks that haven't died, as far as this program knows."""
        ends = self._transport.ends
        return tuple(rank for rank, proc in enumerate(self._placement.procs) if proc not in ends)

    def living(self) -> ProcMesh:
        """Return the ranks that haven't died as a mesh of one dimension."""
        return self.part(self.living_ranks())

    # --- cells

    run = delegate("cells", Cells.run)
    submit = delegate("cells", Cells.submit)
    run_script = delegate("cells", Cells.run_script)
    profile = delegate("cells", Cells.profile)
    interrupt = delegate("cells", Cells.interrupt)
    forget_definitions = delegate("cells", Cells.forget_definitions)

    # --- many small tasks

    map = delegate("tasks", Tasks.map)
    executor = delegate("tasks", Tasks.executor)

    # --- variables

    push = delegate("variables", Namespace.push)
    scatter = delegate("variables", Namespace.scatter)
    pull = delegate("variables", Namespace.pull)
    vars = delegate("variables", Namespace.vars)
    diff = delegate("variables", Namespace.diff)

    # --- the code that ranks run

    sync = delegate("code", Code.sync)

    @property
    def sync_mode(self) -> SyncMode:
        """The mode of ranks before a cell when modules that they have loaded have changed: warn, watch,
        strict or off.
        """
        return self.code.mode

    @sync_mode.setter
    def sync_mode(self, mode: str) -> None:
        self.code.set_mode(mode)

    # --- journal and output

    history = delegate("journal", History.entries)
    last_lines = delegate("journal", History.last_lines)

    # --- diagnosis

    stacks = delegate("debugging", Debugging.stacks)
    why = delegate("debugging", Debugging.why)
    doctor = delegate("debugging", Debugging.doctor)
    debugger = delegate("debugging", Debugging.debugger)
    diff_env = delegate("debugging", Debugging.diff_env)
    diff_hosts = delegate("debugging", Debugging.diff_hosts)

    # --- life cycle

    status = delegate("life", Life.status)
    watch_status = delegate("life", Life.watch_status)
    restart = delegate("life", Life.restart)
    stop = delegate("life", Life.stop)
    resize = delegate("life", Life.resize)
    take_hosts = delegate("life", Life.take_hosts)
    set_lease = delegate("life", Life.set_lease)
    notice = delegate("life", Life.notice)
    set_notice = delegate("life", Life.set_notice)

    def heal(self, *, replay: bool = False, timeout_s: float = HEAL_S) -> HealReport:
        """Repair the losses of this mesh; see `ProcMesh.heal`.

        Args:
            replay: run the cells of the journal again, on the new ranks only, that have defined their state.
            timeout_s: how long it may take, without the replay.

        Raises:
            HealError: if something couldn't be put back. What could, is.

        Example:
            >>> mesh.heal(replay=True).messages           # doctest: +SKIP
        """
        return self.life.heal(replay=replay, timeout_s=timeout_s)

    @property
    def started_with_env(self) -> dict[str, str]:
        """The environment variables that its ranks were given when it was started."""
        return self.life.started_with_env()

    @property
    def dashboard_url(self) -> str:
        """The address of a page that shows this mesh live: on the Jupyter server that this kernel belongs to,
        otherwise on that of `monarch-nb dashboard`.

        Raises:
            MeshUsageError: if neither runs, saying what to type.
        """
        return dashboard_url(self._name)

    # --- display

    def _ipython_display_(self) -> None:
        """Show the card: this mesh was the last line of a cell."""
        picture.show(self)

    def _mime_(self) -> tuple[str, str]:
        """Show the card in marimo, whose protocol this is: a picture of the present state."""
        return picture.mime(self)
