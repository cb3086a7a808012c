"""One cell on several meshes at the same time: `%%mesh --name generator,trainer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb._client.interrupts import Interrupts
from monarch_nb._commands.parser import Namespace
from monarch_nb._display import CellView, LiveDisplay, StackView, ViewWatcher
from monarch_nb._magics.cell import cell_number, check_cell, start_cell
from monarch_nb._magics.profile import request_of
from monarch_nb._magics.state import State
from monarch_nb.actor.handle import transport_of
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh import CellResult, CellRun, Mesh


def run_on_several(state: State, meshes: Sequence[Mesh], source: str, arguments: Namespace) -> None:
    """Run a cell on several meshes at the same time; each one's output is shown below its name.

    Raises:
        MeshUsageError: for what only one mesh can do, or if the cell doesn't compile.
        CellError: of the first mesh that has failed; what others have raised is shown below their names.
    """
    number = cell_number(state.shell)
    check_cell(source, number, arguments)
    ranks = {mesh.name: mesh.select(arguments.ranks) for mesh in meshes}
    if arguments.output or request_of(meshes[0], ranks[meshes[0].name], arguments) is not None:
        raise MeshUsageError(f"%%mesh --output and --profile are for one mesh: --name {meshes[0].name}")
    if arguments.background:
        for mesh in meshes:
            state.last_async[mesh.name] = start_cell(
                mesh, source, ranks[mesh.name], number, arguments.group, arguments.timeout
            )
        return
    _show(meshes, ranks, source, number, arguments)


def _show(
    meshes: Sequence[Mesh], ranks: dict[str, tuple[int, ...]], source: str, number: int, arguments: Namespace
) -> None:
    views = [CellView(ranks[mesh.name], len(mesh), title=mesh.name, group=arguments.group) for mesh in meshes]
    reader = transport_of(meshes[0]).reader
    with Interrupts(reader) as interrupts, LiveDisplay(StackView(views, shows_empty=False)):
        runs: list[CellRun] = []
        interrupts.pass_to(lambda: _interrupt(runs))
        for mesh, view in zip(meshes, views, strict=True):
            view.started()
            watcher = ViewWatcher(view, may_leave_out=True)
            run = mesh.submit(
                source, ranks[mesh.name], watcher=watcher, number=number, timeout=arguments.timeout,
                always=arguments.always,
            )  # fmt: skip
            view.describe_rest(run.goes_on)
            runs.append(run)
        results = [run.wait(interrupts=interrupts) for run in runs]
        failed = [
            (view, error)
            for mesh, view, result in zip(meshes, views, results, strict=True)
            if (error := _error_of(mesh, result)) is not None
        ]
        for view, error in failed[1:]:
            view.note(str(error))
    if failed:
        raise failed[0][1]


def _interrupt(runs: Sequence[CellRun]) -> None:
    for run in runs:
        run.interrupt()


def _error_of(mesh: Mesh, result: CellResult) -> BaseException | None:
    """Return a cell's error, if it has one, naming the mesh; keep it."""
    error = result.error()
    if error is not None:
        mesh.last_error = error
    if isinstance(error, DeviceMeshError):
        error.message = f"mesh {mesh.name!r}: {error.message}"
    return error
