"""Runs cells on a mesh: starts, waits for, interrupts and profiles them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from monarch_nb._display import CellView, LiveDisplay, ViewWatcher
from monarch_nb._protocol.cells import ForgetDefinitions, RunCell
from monarch_nb._protocol.ranks import Interrupt
from monarch_nb._shape import format_ranks
from monarch_nb.actor.checked import checks_arguments
from monarch_nb.actor.handle import placement_of, session_of
from monarch_nb.actor.proc_mesh import check_alive
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh.always import forget, remember
from monarch_nb.mesh.cell_run import CellResult, CellRun
from monarch_nb.mesh.script import prepare_script
from monarch_nb.mesh.sync import before_cell

if TYPE_CHECKING:
    from monarch_nb._client.feed import Watcher
    from monarch_nb._protocol.script import Script
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.profile import Profile, ProfileRequest


@checks_arguments("script")
class Cells:
    """The runner of cells on the ranks of a mesh: `mesh.run(...)` is `mesh.cells.run(...)`."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

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
        """Start a cell on ranks and return at once; the cell continues if this program ends.

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
        check_alive(self._mesh, "run")
        chosen, where = self._mesh.select(ranks), placement_of(self._mesh)
        if always and len(chosen) < len(self._mesh):
            raise MeshUsageError(
                "a cell that is to run always runs on all ranks: leave --ranks (ranks=) out, and ask for "
                "the rank in the cell: if rank == 0: ..."
            )
        if script is not None:
            script = msgspec.structs.replace(script, procs=tuple(where.procs_at(chosen)))
        before_cell(self._mesh)
        run = CellRun(self._mesh, chosen, watcher)
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
                may_leave_out=run.may_leave_out,
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
        """Run a cell on ranks, show its output and values, as `%%mesh` does, and wait for it.

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
            source, self._mesh.select(ranks), watcher, number, timeout, quiet=quiet, always=always
        )

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
        """Run a script on ranks as torchrun would, show its output, and wait for it. Ranks stay warm for the
        next one.

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
        chosen = self._mesh.select(ranks)
        prepared = prepare_script(self._mesh.part(chosen), script, args, is_module=is_module, env=env)
        return self._run_shown(prepared.line, chosen, None, 0, timeout, quiet=quiet, script=prepared)

    def _run_shown(
        self, source: str, ranks: tuple[int, ...], watcher: Watcher | None, number: int,
        timeout: float | None, *, quiet: bool, script: Script | None = None, always: bool = False,
    ) -> CellResult:  # fmt: skip
        """Run a cell or a script, show its output, and wait for it."""
        if quiet or watcher is not None:
            return self.submit(
                source, ranks, watcher=watcher, number=number, timeout=timeout, script=script, always=always
            ).get()
        view = CellView(ranks, len(self._mesh))
        with LiveDisplay(view) as display:
            view.started()
            watcher = ViewWatcher(view, may_leave_out=display.shows_part)
            run = self.submit(
                source, ranks, watcher=watcher, number=number, timeout=timeout, script=script, always=always
            )
            return run.get()

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

        chosen = self._mesh.select(ranks)
        recorders = chosen if profile_ranks is None else self._mesh.select(profile_ranks)
        request = ProfileRequest(recorders, trace, memory, shapes, stacks, file, num_top)
        run = self.submit(source, chosen, timeout=timeout, profile=check_request(request, chosen))
        result = run.wait()
        self._mesh.last_profile = collect(self._mesh, result, request)
        self._mesh.last_error = result.error() or self._mesh.last_error
        result.raise_error()
        return self._mesh.last_profile

    def interrupt(self, ranks: str | Sequence[int] = "all") -> None:
        """Interrupt the work of ranks: cells, step by step as Ctrl-C does, and functions."""
        chosen = self._mesh.select(ranks)
        procs = placement_of(self._mesh).procs_at(chosen)
        session_of(self._mesh).request(Interrupt(procs, format_ranks(chosen)))

    def forget_definitions(self) -> int:
        """Stop running registered cells on new ranks, of this mesh and of those that this program starts;
        return how many there were.
        """
        return max(forget(), session_of(self._mesh).request(ForgetDefinitions()))
