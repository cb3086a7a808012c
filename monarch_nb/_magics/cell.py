"""`%%mesh`: the cell is checked here, runs on the ranks, is displayed live, and raises an error when it
fails.
"""

from __future__ import annotations

import ast
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb._client.interrupts import Interrupts
from monarch_nb._commands.parser import Namespace
from monarch_nb._display import CellView, LiveDisplay, ViewWatcher
from monarch_nb._magics.profile import request_of, show_profile
from monarch_nb._magics.state import State
from monarch_nb._protocol.work import Work
from monarch_nb._shape import Extent, Shape
from monarch_nb._why.automatic import StallDetector
from monarch_nb.actor.handle import transport_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb._protocol.script import Script
    from monarch_nb.mesh import CellResult, Mesh
    from monarch_nb.profile import ProfileRequest

BEGIN_S = 10.0


def run_cell(state: State, mesh: Mesh, source: str, arguments: Namespace) -> None:
    """Run a cell on a mesh and display its output.

    Raises:
        MeshUsageError: if it doesn't compile; nothing is sent then.
        CellError: if it raised on any rank.
    """
    ranks = mesh.select(arguments.ranks)
    number = cell_number(state.shell)
    check_cell(source, number, arguments)
    profile = request_of(mesh, ranks, arguments)
    if arguments.background:
        if arguments.output is not None:
            raise MeshUsageError(
                "%%mesh takes --async or --output, not both: fetch the value later with %mesh pull"
            )
        state.last_async[mesh.name] = start_cell(
            mesh, source, ranks, number, arguments.group, arguments.timeout
        )
        return
    show_cell(
        mesh, source, ranks, number=number, group=arguments.group, timeout=arguments.timeout, profile=profile,
        always=arguments.always,
    )  # fmt: skip
    if arguments.output is not None:
        state.shell.user_ns[arguments.output] = _last_values(mesh, ranks)


def show_cell(
    mesh: Mesh,
    source: str,
    ranks: tuple[int, ...],
    *,
    number: int,
    group: str = "fold",
    timeout: float | None = None,
    rerun_of: int = 0,
    profile: ProfileRequest | None = None,
    script: Script | None = None,
    always: bool = False,
) -> None:
    """Run a cell, display it while it runs, and raise its error."""
    view = CellView(ranks, len(mesh), more_hint="%mesh logs", group=group)
    stall_detector = StallDetector(mesh, view)
    with Interrupts(transport_of(mesh).reader) as interrupts, LiveDisplay(view, on_tick=stall_detector.tick):
        view.started()
        run = mesh.submit(
            source,
            ranks,
            watcher=ViewWatcher(view, may_leave_out=True),
            number=number,
            timeout=timeout,
            rerun_of=rerun_of,
            profile=profile,
            script=script,
            always=always,
        )
        view.describe_rest(run.goes_on)
        stall_detector.watch(run)
        interrupts.pass_to(run.interrupt)
        result = run.wait(interrupts=interrupts)
    if profile is not None:
        show_profile(mesh, result, profile)  # also of a cell that has failed
    finish_cell(mesh, result)


def finish_cell(mesh: Mesh, result: CellResult) -> None:
    """Keep and raise a cell's error, if it has one."""
    error = result.error()
    if error is not None:
        mesh.last_error = error
        raise error


def start_cell(
    mesh: Mesh,
    source: str,
    ranks: tuple[int, ...],
    number: int,
    group: str,
    timeout: float | None,
    script: Script | None = None,
) -> int:
    """Start a cell without waiting, with a display that continues; return its number in the journal.

    Raises:
        MeshUsageError: if the controller refuses it.
    """
    view = CellView(ranks, len(mesh), more_hint="%mesh logs", group=group)
    stall_detector = StallDetector(mesh, view)
    display = LiveDisplay(view, on_tick=stall_detector.tick)
    view.started()
    run = mesh.submit(
        source,
        ranks,
        watcher=ViewWatcher(view, show_errors=True, may_leave_out=True),
        number=number,
        timeout=timeout,
        script=script,
    )
    view.describe_rest(run.goes_on)
    stall_detector.watch(run)
    n = run.wait_for_number(BEGIN_S)
    view.retitle(f"#{n} runs in the background; %mesh result {n} waits for it")

    def ended() -> None:
        view.retitle(f"#{n} goes on" if run.is_left else f"#{n} has ended")
        if run.fault is not None:
            view.note(run.goes_on() if run.is_left else str(run.fault))
        display.finish_soon()

    run.when_done(ended)
    return n


def _last_values(mesh: Mesh, ranks: tuple[int, ...]) -> ValueMesh[Any]:
    """Fetch the last expression's value from each rank."""
    whole = len(ranks) == len(mesh)
    values: ValueMesh[Any] = work_on(mesh.part(ranks), Work.CELL_VALUE, None, "%%mesh --output").get()
    return ValueMesh(
        Shape.full(mesh.extent if whole else Extent(["ranks"], [len(ranks)])), list(values.values())
    )


def check_cell(source: str, number: int, arguments: Namespace) -> None:
    """Raise unless a cell is valid Python and its options are compatible.

    Raises:
        MeshUsageError: if not; nothing is sent then.
    """
    check_source(source, number)
    _check_output_name(arguments.output)
    if arguments.always and arguments.background:
        raise MeshUsageError("%%mesh takes --always or --async, not both: definitions are waited for")


def check_source(source: str, number: int) -> None:
    """Find syntax errors here, once, instead of on every rank.

    Raises:
        MeshUsageError: with the line.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        compile(source, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return  # plain Python
    try:
        # Not the shell's own function: its transformers may turn whole cells into %%mesh cells (`%mesh auto
        # on`).
        transformed = TransformerManager().transform_cell(source)
        compile(transformed, f"Cell In[{number}]", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (RecursionError, MemoryError):
        raise MeshUsageError(
            "this cell is nested too deeply for Python's compiler, so nothing was sent to the ranks. "
            "Split its longest expression"
        ) from None
    except SyntaxError as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        raise MeshUsageError(f"this cell is not Python, so nothing was sent to the ranks\n{text}") from None


def cell_number(shell: Any) -> int:
    """Return the number in front of the running cell; shell.execution_count may be the next one's by now."""
    return max(1, len(shell.history_manager.input_hist_parsed) - 1)


def _check_output_name(name: str | None) -> None:
    if name is not None and not name.isidentifier():
        raise MeshUsageError(f"%%mesh --output takes a variable's name, not {name!r}")
