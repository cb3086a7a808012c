"""Mesh: a ProcMesh with a name, cells, variables, a journal, and a life of its own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from monarch_nb._client.card import show_card
from monarch_nb._client.dashboard import dashboard_url
from monarch_nb._client.heal_report import HealReport
from monarch_nb._client.session import Session
from monarch_nb._client.state import StatusFeed
from monarch_nb._protocol.cells import ForgetDefinitions, RunCell
from monarch_nb._protocol.hang import RankStacks, Stacks
from monarch_nb._protocol.names import GetMesh, GroupRecord
from monarch_nb._protocol.programs import SetLease, SetNotice
from monarch_nb._protocol.ranks import Interrupt, Restart
from monarch_nb._reload import SyncMode
from monarch_nb._shape import Extent, Shape, format_ranks, parse_ranks
from monarch_nb._transport.transport import TransportClosed
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.actor.future import Future
from monarch_nb.actor.placement import Placement
from monarch_nb.actor.proc_mesh import HEAL_S, ProcMesh, part_at
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.display import CellView, LiveDisplay, ViewWatcher, card_html
from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.mesh import namespace, shipping
from monarch_nb.mesh.actors import Actors
from monarch_nb.mesh.always import forget, remember
from monarch_nb.mesh.cell_run import CellResult, CellRun
from monarch_nb.mesh.environment import EnvironmentDifference, find_environment_difference
from monarch_nb.mesh.history import Entries, History
from monarch_nb.mesh.log_page import read_page
from monarch_nb.mesh.replay import replay as run_again
from monarch_nb.mesh.scatter import parts_of
from monarch_nb.mesh.script import prepare_script
from monarch_nb.mesh.sync import (
    SYNC_S,
    EnvironmentChoice,
    SyncRequest,
    before_cell,
    set_sync_mode,
    sync,
    sync_mode,
)
from monarch_nb.mesh.tasks import MapRun, MeshExecutor
from monarch_nb.mesh.variables import Difference, Variables, check_name, find_difference
from monarch_nb.status import MeshStatus, StatusChange
from monarch_nb.status.messages import Snapshot, UnwatchStatus, WatchStatus
from monarch_nb.sync import SyncOptions, SyncReceipt

if TYPE_CHECKING:
    from monarch_nb._client.feed import Watcher
    from monarch_nb._protocol.script import Script
    from monarch_nb.debug.client import MeshDebugger
    from monarch_nb.mesh.shipping import HostsDifference
    from monarch_nb.profile import Profile, ProfileRequest
    from monarch_nb.rdma.doctor.report import Report as DoctorReport
    from monarch_nb.why import HangReport

RESTART_S = 60.0
R = TypeVar("R")


class Mesh(ProcMesh):
    """A named mesh. Everything that a `ProcMesh` can, and cells.

    Attributes:
        last_error: what the last cell that failed has raised, with all its failures.
        last_profile: what the last cell with a profile took.
        when_stopped: called with the reason once this program stops it.
        actors: the actors that run on it, by name.
        journal: what ran on it.

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
        self.journal = History(self)

    @property
    def started_with_env(self) -> dict[str, str]:
        """The environment variables that its ranks were given when it was started."""
        record = self._session.request(GetMesh())
        return {} if record is None else dict(record.env)

    @property
    def name(self) -> str:
        """The name that `%mesh start` gave it."""
        return self._name

    def select(self, ranks: str | Sequence[int]) -> tuple[int, ...]:
        """Return ranks from a rank set such as `0-3,7` or `hosts=0,gpus=::2`."""
        if isinstance(ranks, str):
            return parse_ranks(ranks, self.extent)
        return tuple(ranks)

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

    def submit(
        self,
        source: str,
        ranks: str | Sequence[int] = "all",
        *,
        watcher: Watcher | None = None,
        number: int = 0,
        timeout: float | None = None,
        rerun_of: int = 0,
        replay_of: int = 0,
        profile: ProfileRequest | None = None,
        script: Script | None = None,
        always: bool = False,
    ) -> CellRun:
        """Start a cell on ranks and return at once; it goes on if this program ends.

        Args:
            source: IPython source: `await`, `!command` and magics work.
            ranks: a rank set.
            watcher: sees output and results as they come.
            number: the notebook's number of the cell, for tracebacks.
            timeout: seconds; then the ranks are interrupted.
            rerun_of: number in the journal of the cell that this repeats.
            replay_of: the same, for a rank that is to become what it was.
            profile: what ranks record meanwhile; `monarch_nb.profile.collect` fetches it.
            script: what runs, if that's a script; `source` is the line that says so. See `run_script`.
            always: see `run`.
        """
        self._check_alive("run")
        chosen, where = self.select(ranks), self._placement
        if always and len(chosen) < len(self):
            raise MeshUsageError(
                "a cell that is to run always runs on all ranks: leave --ranks (ranks=) out, and ask for "
                "the rank in the cell: if rank == 0: ..."
            )
        if script is not None:
            script = msgspec.structs.replace(script, procs=tuple(where.procs_at(chosen)))
        before_cell(self)
        run = CellRun(self, chosen, watcher)
        if always:
            run.when_done(lambda: remember(source, number) if run.is_ok else None)
        return run.start(
            RunCell(
                source=source,
                ranks=list(chosen),
                procs=where.procs_at(chosen),
                rank_set=format_ranks(chosen),
                group=where.group,
                number=number,
                context=where.context,
                timeout_s=timeout,
                rerun_of=rerun_of,
                replay_of=replay_of,
                profile=None if profile is None else profile.options,
                script=script,
                always=always,
            )
        )

    def run(
        self,
        source: str,
        ranks: str | Sequence[int] = "all",
        *,
        watcher: Watcher | None = None,
        number: int = 0,
        timeout: float | None = None,
        quiet: bool = False,
        always: bool = False,
    ) -> CellResult:
        """Run a cell on ranks, show what it prints and returns, as `%%mesh` does, and wait for it.

        Args:
            source: IPython source: `await`, `!command` and magics work.
            ranks: a rank set.
            watcher: sees output and results as they come; nothing is shown then.
            number: the notebook's number of the cell, for tracebacks.
            timeout: seconds; then the ranks are interrupted.
            quiet: show nothing.
            always: it defines what all ranks are to have: it also runs on those that heal or are added, and
                on each mesh that this program starts later. A cell that defines all that an earlier one did
                takes its place; `forget_definitions` ends it.

        Raises:
            CellError: if it raised on any rank.
            RankTimeout: if the time was up; the ranks have been interrupted.
            CellInterrupted: (a KeyboardInterrupt) if the user has interrupted it, and with it the ranks.

        Example:
            >>> mesh.run("print('rank', rank)", "0-1").seconds     # doctest: +SKIP
            [0] rank 0
            [1] rank 1
            {0: 0.0002, 1: 0.0002}
        """
        return self._run_shown(
            source, self.select(ranks), watcher, number, timeout, quiet=quiet, always=always
        )

    def forget_definitions(self) -> int:
        """Run cells that were to run always on no further ranks, of this mesh and of those that this program
        starts; return how many there were.
        """
        return max(forget(), self._session.request(ForgetDefinitions()))

    def _run_shown(
        self, source: str, ranks: tuple[int, ...], watcher: Watcher | None, number: int, timeout: float | None, *,  # noqa: E501
        quiet: bool, script: Script | None = None, always: bool = False,
    ) -> CellResult:  # fmt: skip
        """Run a cell or a script, show what comes, and wait for it."""
        if quiet or watcher is not None:
            return self.submit(
                source, ranks, watcher=watcher, number=number, timeout=timeout, script=script, always=always
            ).get()
        view = CellView(ranks, len(self))
        with LiveDisplay(view):
            view.started()
            run = self.submit(
                source, ranks, watcher=ViewWatcher(view), number=number, timeout=timeout, script=script,
                always=always,
            )  # fmt: skip
            return run.get()

    def run_script(
        self,
        script: str | os.PathLike[str],
        *args: object,
        ranks: str | Sequence[int] = "all",
        is_module: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        quiet: bool = False,
    ) -> CellResult:
        """Run a script on ranks as torchrun would, show what it prints, and wait for it. Ranks stay warm for
        the next.

        Each run has a rendezvous of its own (MASTER_ADDR, MASTER_PORT), a new `__main__`, its arguments in
        `sys.argv`, and imports the user's modules anew. Process groups that it leaves are ended; variables
        and groups of the cells are as before. A rank that sees a single GPU has LOCAL_RANK 0.

        Args:
            script: a file, relative to this program's working directory; or a module's name.
            args: what stands behind it on a command line.
            is_module: run it as `python -m` does.
            env: variables for this run only.
            timeout: seconds; then the ranks are interrupted.
            quiet: show nothing.

        Raises:
            CellError: if it raised on any rank, or has exited with another code than 0 (a `ScriptExit`).
            RankTimeout, CellInterrupted: as `run`.

        Example:
            >>> mesh.run_script("train.py", "--lr", 0.1).seconds     # doctest: +SKIP
            {0: 3.1, 1: 3.1}
        """
        chosen = self.select(ranks)
        prepared = prepare_script(self.part(chosen), script, args, is_module=is_module, env=env)
        return self._run_shown(prepared.line, chosen, None, 0, timeout, quiet=quiet, script=prepared)

    # --- many small tasks

    def map(
        self,
        function: Callable[..., R],
        items: Iterable[Any],
        *,
        ranks: str | Sequence[int] = "all",
        ordered: bool = True,
        retries: int = 2,
        return_exceptions: bool = False,
        progress: bool = True,
    ) -> MapRun[R]:
        """Call `function` of each item on whichever rank is free; begins at once, and doesn't wait.

        Args:
            items: anything that can be iterated; of a generator, items are taken as ranks get free, in
                another thread.
            ordered: results in the order of the items; else as they're done.
            retries: how often an item is given to another rank when one has died at it.
            return_exceptions: an item's error takes the place of its result; else it's raised, and the rest
                is given up.
            progress: show a bar in a notebook, if it takes more than two seconds.

        Example:
            >>> mesh.map(lambda x: x * x, range(4)).get()            # doctest: +SKIP
            [0, 1, 4, 9]
        """
        self._check_alive("map")
        return MapRun(
            self, function, items, self.select(ranks),
            ordered=ordered, retries=retries, return_exceptions=return_exceptions, progress=progress,
        )  # fmt: skip

    def executor(self, ranks: str | Sequence[int] = "all", *, retries: int = 2) -> MeshExecutor:
        """Return a `concurrent.futures.Executor` whose workers are ranks.

        Example:
            >>> with mesh.executor() as pool:                         # doctest: +SKIP
            ...     futures = [pool.submit(evaluate, path) for path in paths]
        """
        self._check_alive("executor")
        return MeshExecutor(self, self.select(ranks), retries=retries)

    def profile(
        self,
        source: str,
        ranks: str | Sequence[int] = "all",
        *,
        profile_ranks: str | Sequence[int] | None = None,
        file: str = "",
        trace: bool = True,
        memory: bool = False,
        shapes: bool = False,
        stacks: bool = False,
        num_top: int = 20,
        timeout: float | None = None,
    ) -> Profile:
        """Run a cell on ranks with torch.profiler around it; one trace file, and a table of operators folded
        over ranks.

        Args:
            profile_ranks: where it's recorded; by default wherever the cell runs.
            file: where the trace goes, FILE.json or FILE.json.gz; by default `profile-CELL-DATE.json.gz` in
                the working directory.
            trace: without it, no torch is needed: for `memory` alone.
            memory: record what the cell does to memory, too.
            shapes: record the shapes of operators' inputs.
            stacks: record Python stacks.
            num_top: how many rows its tables show.
            timeout: seconds; then the ranks are interrupted.

        Raises:
            CellError: if it raised on any rank, and so on as `run` does. The profile has been written: it's
                `last_profile`.

        Example:
            >>> mesh.profile("loss.backward()", profile_ranks="0-1").file      # doctest: +SKIP
            '/home/me/profile-12-20260801-101500.json.gz'
        """
        from monarch_nb.profile import ProfileRequest, collect
        from monarch_nb.profile.request import check_request

        chosen = self.select(ranks)
        recorders = chosen if profile_ranks is None else self.select(profile_ranks)
        request = ProfileRequest(recorders, trace, memory, shapes, stacks, file, num_top)
        run = self.submit(source, chosen, timeout=timeout, profile=check_request(request, chosen))
        result = run.wait()
        self.last_profile = collect(self, result, request)
        self.last_error = result.error() or self.last_error
        result.raise_error()
        return self.last_profile

    def interrupt(self, ranks: str | Sequence[int] = "all") -> None:
        """Interrupt what runs on ranks: cells, step by step as Ctrl-C does, and functions."""
        chosen = self.select(ranks)
        procs = self._placement.procs_at(chosen)
        self._session.request(Interrupt(procs, format_ranks(chosen)))

    def restart(self, ranks: str | Sequence[int]) -> None:
        """Kill ranks and start them anew at their places. Their state is lost; handles on them stay good."""
        chosen = self.select(ranks)
        procs = self._placement.procs_at(chosen)
        self._session.request(Restart(procs, format_ranks(chosen)), RESTART_S)

    def heal(self, *, replay: bool = False, timeout_s: float = HEAL_S) -> HealReport:
        """Put back what this mesh has lost; see `ProcMesh.heal`.

        Args:
            replay: run the cells of the journal again, on the new ranks only, that have defined their state.
            timeout_s: how long it may take, without the replay.

        Raises:
            HealError: if something couldn't be put back. What could, is.

        Example:
            >>> mesh.heal(replay=True).messages           # doctest: +SKIP
        """
        report = super().heal(timeout_s=timeout_s)
        if replay and report.ranks:
            report = dataclasses.replace(report, messages=(*report.messages, *run_again(self, report.ranks)))
        return report

    def stacks(self, ranks: str | Sequence[int] = "all", *, native: bool = False) -> dict[int, RankStacks]:
        """Return where ranks stand, also those that can't answer: something holds the interpreter's lock, or
        the main thread waits in C.

        Args:
            native: frames of C code, too; only py-spy has them, and it takes some seconds.

        Returns:
            By rank: "stacks" (text by thread name; None if they couldn't be had), "how" (asked, faulthandler
            or py-spy), "missing" (what couldn't be had, and why) and "process" (what the kernel says, if
            that's special).

        Example:
            >>> mesh.stacks("3")[3]["how"]                # doctest: +SKIP
            'faulthandler'
        """
        living = self.living_ranks()
        procs = self._placement.procs_at(r for r in self.select(ranks) if r in living)
        return self._session.request(Stacks(procs, native))

    def why(self, ranks: str | Sequence[int] = "all") -> HangReport:
        """Say why nothing moves: what each rank waits for, and which one is the odd one.

        Example:
            >>> print(mesh.why().sentence)                # doctest: +SKIP
            ranks 0-2 wait in all_reduce #41 of the default group since 34 s; rank 3 never entered it: it is
            in cell [17] line 4, input()
        """
        from monarch_nb.why import explain

        return explain(self, self.select(ranks))

    def doctor(
        self,
        ranks: str | Sequence[int] = "",
        *,
        size_bytes: int = 64 << 20,
        measures: bool = True,
        all_paths: bool = False,
    ) -> DoctorReport:
        """Say what ranks have for moving bytes, what each path between them gives, and what to change.

        Args:
            ranks: which ones; by default all are looked at, and those that stand for their hosts are
                measured.
            size_bytes: how much is read at a time.
            measures: without it, nothing is measured, which takes a fraction of a second.
            all_paths: measure also the path through the mesh's own messages.

        Example:
            >>> print(mesh.doctor("0,1").measurements[1].gb_per_s)     # doctest: +SKIP
            9.3
        """
        from monarch_nb.rdma.doctor.report import diagnose

        return diagnose(self, ranks, size_bytes, measures, all_paths=all_paths)

    # --- the code that ranks run

    def sync(
        self,
        *paths: str | os.PathLike[str],
        dry_run: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        same_path: bool = False,
        reload: bool = True,
        force: bool = False,
        env: bool = False,
        verify: bool = False,
        copy: bool = False,
        timeout_s: float = SYNC_S,
    ) -> SyncReceipt:
        """Bring the workspace to all other hosts; then have this program and all ranks run what the files of
        their modules hold now.

        The workspace is the repository that this program works in, or else its working directory. Files that
        git ignores don't go along, nor do secrets, environments, and files over 100 MB; a `.meshignore` says
        more, in the language of a .gitignore. On another host they lie in a folder of their own, which ranks
        there import from and work in. What is sent is what is missing there. Hosts that share the file system
        are sent nothing. Objects keep their identity and state when a module is reloaded; only modules of
        yours are looked at, not installed packages.

        Args:
            paths: files or folders to reload; a folder outside of the workspace is brought to the hosts, too.
            dry_run: only say what would be sent and reloaded.
            include: patterns of what goes along although it's ignored, secret or big; they hold for later
                syncs, too.
            exclude: patterns of what doesn't.
            same_path: make a link at the notebook's path on each host.
            reload: without it, files are only put in place.
            force: however large the workspace is; without it, up to a GiB.
            env: bring the environment that this program runs with, too, interpreter included. Living ranks
                keep what they were started with; those that are started from then on (`restart`, `heal`,
                `resize`) run in it.
            verify: with `env`: read every file here, whatever its package's record says.
            copy: with `env`: make a copy also for hosts that see this program's files, so that what is
                installed here later changes nothing there.
            timeout_s: so long a rank that is busy is waited for; it reloads when it's done, and the receipt
                says so.

        Raises:
            MeshUsageError: if a path doesn't exist, or the workspace can't be meant.

        Example:
            >>> print(mesh.sync())                        # doctest: +SKIP
            workspace /home/me/proj: 31 files, 210 KiB, in 41 ms
            [hosts 1-2] 1 changed (model.py): 9.1 KiB sent
            [0-7] reloaded model.py (class Net, 2 functions)
        """
        options = SyncOptions(tuple(include), tuple(exclude), dry_run, same_path, force)
        environment = EnvironmentChoice(verify, copy) if env else None
        return sync(self, SyncRequest(paths, timeout_s, reload, environment), options)

    @property
    def sync_mode(self) -> SyncMode:
        """What ranks do before a cell when modules that they have loaded have changed: warn, watch, strict
        or off.
        """
        return sync_mode(self)

    @sync_mode.setter
    def sync_mode(self, mode: str) -> None:
        set_sync_mode(self, mode)

    def debugger(self) -> MeshDebugger:
        """Return the debugger of this mesh: who stands at a breakpoint, and commands to them."""
        from monarch_nb.debug.client import MeshDebugger

        return MeshDebugger(self)

    # --- variables

    def push(self, variables: Mapping[str, Any], ranks: str | Sequence[int] = "all") -> None:
        """Set variables in the cells' namespace of ranks."""
        namespace.push(self, variables, ranks)

    def scatter(self, name: str, value: Any, ranks: str | Sequence[int] = "all", *, dim: int = 0) -> None:
        """Give each rank a part of a value, as a variable of that name: sizes of parts differ by one at most.

        Args:
            value: a tensor, an array, a list; or a table, whose rows are split: Arrow, Polars, pandas, a
                Hugging Face dataset, a relation of DuckDB, of which ranks get Arrow tables. What arrives is
                of the same type.
            dim: of a tensor or an array.

        Raises:
            MeshUsageError: if it can't be split.

        Example:
            >>> mesh.scatter("frame", polars.read_parquet("data.parquet"))     # doctest: +SKIP
        """
        check_name(name)
        chosen = self.select(ranks)
        for rank, part in zip(chosen, parts_of(name, value, len(chosen), dim), strict=True):
            self.push({name: part}, [rank])

    def pull(self, *names: str, ranks: str | Sequence[int] = "all") -> ValueMesh[Any]:
        """Return variables of the cells' namespace: one value per rank, or a dict for several names.

        Raises:
            UnknownVariable: (an ActorError and a NameError) if a rank has no such variable.
        """
        return namespace.pull(self, names, ranks)

    def vars(self, ranks: str | Sequence[int] = "all", names: Sequence[str] = ()) -> Variables:
        """Return what ranks hold in the cells' namespace: type, shape, dtype, device, norm; where they
        differ.

        Args:
            names: only these.
        """
        return namespace.described(self, ranks, names)

    def diff(self, name: str, ranks: str | Sequence[int] = "all") -> Difference:
        """Return where ranks disagree on a variable: a tensor, a module, a state dict, or anything else.

        Raises:
            UnknownVariable: (an ActorError and a NameError) if a rank has no such variable.
        """
        check_name(name.partition(".")[0].partition("[")[0])
        return find_difference(self, name, self.select(ranks))

    def diff_env(
        self, ranks: str | Sequence[int] = "all", *, shows_all: bool = False
    ) -> EnvironmentDifference:
        """Return where ranks run with different things: versions, environment variables, git commit, GPU
        driver, torch's settings, limits.

        Args:
            shows_all: its text has what is equal, too, and what is each rank's own.
        """
        return find_environment_difference(self, self.select(ranks), shows_all=shows_all)

    def diff_hosts(self) -> HostsDifference:
        """Return the packages that hosts have otherwise than this program: version, build, edited by hand.

        Raises:
            EnvironmentSyncError: if this program runs in a distribution's own environment.
        """
        return shipping.compare_hosts(self._session, self.living().host_indices)

    # --- the journal

    def history(self, limit: int = 1000) -> Entries:
        """Return the last entries of the journal, oldest first."""
        return self.journal.entries(limit)

    # --- life

    def status(self, *, fresh: bool = True) -> MeshStatus:
        """Return how the mesh is just now.

        Args:
            fresh: whether hosts look at everything first, which takes them some 20 ms; else memory, CPU and
                lines are those that were seen last.
        """
        return self._session.request(Snapshot(self._placement.group, fresh))

    def _ipython_display_(self) -> None:
        """Show the card: this mesh was the last line of a cell. Of one that has ended, say so."""
        if self._transport.closed:
            print(self._left())
            return
        try:
            show_card(self)
        except (MeshError, TransportClosed) as error:
            print(f"mesh {self._name!r} has ended ({error}). Start one anew: %mesh start {self._name}")

    def _mime_(self) -> tuple[str, str]:
        """Show the card in marimo, whose protocol this is: a picture of the state as it is now."""
        try:
            return "text/html", card_html.render(self.status())
        except (MeshError, TransportClosed) as error:
            return "text/plain", self._left() if self._transport.closed else str(error)

    def _left(self) -> str:
        """Return why there's nothing to show: this program has stopped the mesh, or left it."""
        if self._stopped:
            return f"mesh {self._name!r} has ended: {self._stopped}. Start one anew: %mesh start {self._name}"
        return (
            f"this notebook has left mesh {self._name!r}. Come back, if it still runs: %mesh attach "
            f"{self._name}"
        )

    def watch_status(
        self, on_change: Callable[[StatusChange], None], on_end: Callable[[], None] | None = None
    ) -> StatusFeed[StatusChange]:
        """Watch how the mesh is: all of it first, then what changes, up to twenty times a second.

        Args:
            on_change: called in the reading thread with all of it, or a change (see `status.apply`), and must
                be quick. What comes next waits until the feed's `taken` is called; changes until
                then come as one.
            on_end: called when the mesh has ended.

        Returns:
            the feed; `close` ends it.
        """
        feed: StatusFeed[StatusChange] = StatusFeed(
            self._transport, StatusChange, on_change, UnwatchStatus, on_end
        )
        self._session.watch(feed, WatchStatus(self._placement.group))
        return feed

    def last_lines(self, ranks: str | Sequence[int] = "all", limit: int = 50) -> list[str]:
        """Return what ranks have printed last, the oldest line first.

        Example:
            >>> mesh.last_lines("0", 2)                   # doctest: +SKIP
            ['loss 0.41', 'loss 0.39']
        """
        return [line.text for line in read_page(self, self.select(ranks), limit=limit).lines[-limit:]]

    @property
    def dashboard_url(self) -> str:
        """The address of a page that shows this mesh, live: on the Jupyter server that this kernel belongs
        to, else on `monarch-nb dashboard`'s.

        Raises:
            MeshUsageError: if neither runs, saying what to type.
        """
        return dashboard_url(self._name)

    def notice(self) -> float | None:
        """Return how long before an engine takes hosts away it's told, in seconds; None: it isn't."""
        return self._session.request(SetNotice()).notice_s

    def set_notice(self, notice_s: float | None) -> None:
        """Say how long before an engine takes hosts away, in seconds, programs are told and the states of
        `Checkpointed` actors are saved. Both happen once more near the end, and in the last 20 s no cell is
        taken. None: none of that.

        Example:
            >>> mesh.set_notice(600.0)                   # doctest: +SKIP
        """
        self._session.request(SetNotice(notice_s, changes=True))

    def set_lease(self, idle_timeout_s: float) -> None:
        """Say after how long without client and running cell the mesh ends; the time begins anew."""
        self._session.request(SetLease(idle_timeout_s))

    def stop(self, reason: str = "", *, grace_s: float | None = 3.0) -> Future[None]:
        """End the mesh: its ranks, its host processes, its connection file."""
        session = self._session
        for tell in self.when_stopped:
            tell("it was stopped")  # a picture stays where it is shown
        self._stopped = reason or "it was stopped"
        reply, pid = session.ask_to_end()

        def finish(_pending: Any) -> None:
            session.close()
            if pid:
                wait_until_gone(pid, (grace_s or 0.0) + 10.0)

        return Future(reply, finish, f"stop of {self._name}")

    def __repr__(self) -> str:
        return f"<Mesh {self._name!r}: {self.extent}>"
