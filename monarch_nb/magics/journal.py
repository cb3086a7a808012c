"""Verbs about what ran: history, rerun, export, logs, result."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from monarch_nb.display import CellView, LiveDisplay, ViewWatcher
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.magics.arguments import Namespace
from monarch_nb.magics.cell import finish_cell, show_cell
from monarch_nb.magics.script import rerun_script
from monarch_nb.magics.state import State

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh


def history(state: State, arguments: Namespace) -> Any:
    """Show the journal: what ran, by whom, on which ranks, how it ended. With a number: all about that."""
    mesh = state.mesh(arguments.name)
    if arguments.number is not None:
        print(mesh.journal.entry(arguments.number).text())
        return None
    return mesh.history(arguments.last)


def rerun(state: State, arguments: Namespace) -> None:
    """Run a cell of the journal again, on the same ranks or others."""
    mesh = state.mesh(arguments.name)
    entry = mesh.journal.entry(arguments.number)
    if entry.kind != "cell":
        raise MeshUsageError(
            f"#{entry.n} of the journal is no cell but {entry.kind}; only cells can be run again: see "
            "%mesh history"
        )
    if entry.details.get("nolog"):
        raise MeshUsageError(f"#{entry.n} of the journal can't be run again: its source isn't kept (# nolog)")
    ranks = mesh.select(arguments.ranks or entry.ranks)
    if entry.details.get("script"):
        rerun_script(mesh, entry, ranks)
        return
    show_cell(mesh, entry.source, ranks, number=entry.number, rerun_of=entry.n)


def export(state: State, arguments: Namespace) -> None:
    """Write the journal's cells to FILE.ipynb (with their output) or FILE.py (a script for torchrun)."""
    print(state.mesh(arguments.name).journal.export(arguments.file))


def logs(state: State, arguments: Namespace) -> None:
    """Show what ranks have printed, folded; all of it is kept by the host process. --follow goes on until
    interrupted.
    """
    mesh = state.mesh(arguments.name)
    ranks = mesh.select(arguments.ranks)
    try:
        for text in mesh.journal.logs(
            ranks, grep=arguments.grep, tail_bytes=arguments.bytes, follow=arguments.follow
        ):
            sys.stdout.write(text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not arguments.follow:
            raise


def _running(mesh: Mesh) -> int | None:
    """Return the number of the youngest cell that runs."""
    return next((e.n for e in reversed(mesh.history()) if e.kind == "cell" and e.ended is None), None)


def result(state: State, arguments: Namespace) -> None:
    """Wait for a cell, show it, and fail if it has failed. By default: the last one that --async has
    started, or that runs.
    """
    mesh = state.mesh(arguments.name)
    number = arguments.number or state.last_async.get(mesh.name) or _running(mesh)
    if number is None:
        raise MeshUsageError(
            "%mesh result: no cell was started with --async here, and none runs; name one of %mesh history"
        )
    entry = mesh.journal.entry(number)
    if entry.kind != "cell":
        raise MeshUsageError(
            f"%mesh result: #{number} of the journal is no cell but {entry.kind}; name one of %mesh history"
        )
    view = CellView(mesh.select(entry.ranks), len(mesh))
    with LiveDisplay(view):
        view.started(ago_s=time.time() - entry.when)
        run = mesh.journal.replay(entry, ViewWatcher(view))
        view.describe_rest(run.goes_on)
        ended = run.wait()
    run.seen()
    finish_cell(mesh, ended)
