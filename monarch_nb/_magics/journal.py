"""Verbs about past cells: history, rerun, result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from monarch_nb._commands import actions
from monarch_nb._commands.parser import Namespace
from monarch_nb._display import CellView, LiveDisplay, ViewWatcher
from monarch_nb._magics.cell import finish_cell, show_cell
from monarch_nb._magics.script import rerun_script
from monarch_nb._magics.state import State
from monarch_nb._protocol.states import EntryKind
from monarch_nb._shape import name_ranks
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh
    from monarch_nb.mesh.history import Entry


def history(state: State, arguments: Namespace) -> Any:
    """Show the journal; with a number, the complete entry."""
    mesh = state.mesh(arguments.name)
    if arguments.number is not None:
        print(mesh.journal.entry(arguments.number).text())
        return None
    return actions.history(mesh, arguments)


def rerun(state: State, arguments: Namespace) -> None:
    """Run a cell of the journal again, on the same ranks or others."""
    mesh = state.mesh(arguments.name)
    entry = mesh.journal.entry(arguments.number)
    if entry.kind != EntryKind.CELL:
        raise MeshUsageError(
            f"#{entry.n} of the journal is no cell but {entry.kind}; only cells can be run again: see "
            "%mesh history"
        )
    if entry.record.nolog:
        raise MeshUsageError(f"#{entry.n} of the journal can't be run again: its source isn't kept (# nolog)")
    ranks = mesh.select(arguments.ranks) if arguments.ranks else _same_ranks(mesh, entry)
    if entry.record.script:
        rerun_script(mesh, entry, ranks)
        return
    show_cell(mesh, entry.source, ranks, number=entry.number, rerun_of=entry.n)


def _same_ranks(mesh: Mesh, entry: Entry) -> tuple[int, ...]:
    """Return the ranks that a cell ran on.

    Raises:
        MeshUsageError: if some have left the mesh since.
    """
    gone = [rank for rank in entry.ran_on if rank >= len(mesh)]
    if gone:
        raise MeshUsageError(
            f"#{entry.n} ran on {name_ranks(entry.ran_on)}, and {name_ranks(gone)} left mesh {mesh.name!r} "
            f"since. Choose ranks that it has: %mesh rerun {entry.n} --ranks all"
        )
    return entry.ran_on


def _running(mesh: Mesh) -> int | None:
    """Return the number of the most recently started cell that runs."""
    return next((e.n for e in reversed(mesh.history()) if e.kind == EntryKind.CELL and e.ended is None), None)


def result(state: State, arguments: Namespace) -> None:
    """Wait for a cell, display it, and raise its error."""
    mesh = state.mesh(arguments.name)
    number = arguments.number or state.last_async.get(mesh.name) or _running(mesh)
    if number is None:
        raise MeshUsageError(
            "%mesh result: no cell was started with --async here, and none runs; name one of %mesh history"
        )
    entry = mesh.journal.entry(number)
    if entry.kind != EntryKind.CELL:
        raise MeshUsageError(
            f"%mesh result: #{number} of the journal is no cell but {entry.kind}; name one of %mesh history"
        )
    view = CellView(entry.ran_on, entry.width(mesh))
    with LiveDisplay(view):
        view.started(ago_s=time.time() - entry.when)
        run = mesh.journal.replay(entry, ViewWatcher(view, may_leave_out=True))
        view.describe_rest(run.goes_on)
        ended = run.wait()
    run.seen()
    finish_cell(mesh, ended)
