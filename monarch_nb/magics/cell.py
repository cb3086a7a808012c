"""A cell on its way: checked here, run there, watched live, red when it fails."""

from __future__ import annotations

import argparse
import ast
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from monarch_nb._shape import Extent, Shape
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.display import CellView, LiveDisplay
from monarch_nb.exceptions import ActorError, MeshUsageError, RankFailure
from monarch_nb.mesh import CellResult, cell_error

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh


class CellFailed(ActorError):
    """A cell failed on some ranks. Shown without the frames of this package: they'd tell the reader nothing."""

    def _render_traceback_(self) -> list[str]:
        return str(self).split("\n")


class ViewWatcher:
    """Feeds a CellView. Output comes in the reading thread, results in the cell's; the view has its own lock."""

    def __init__(self, view: CellView) -> None:
        self._view = view

    def text(self, rank: int, stream: str, text: str) -> None:
        """A rank has written."""
        self._view.output(rank, stream, text)

    def display(self, rank: int, content: dict[str, Any]) -> None:
        """A rank shows something rich."""
        self._view.display(
            rank, content["data"], content["metadata"], display_id=content["display_id"], update=content["update"]
        )

    def end(self, rank: int) -> None:
        """All output of a rank has come; the view needs no note of it."""

    def result(self, rank: int, ended: Mapping[str, Any]) -> None:
        """The cell has ended on a rank."""
        if ended["value"] is not None:
            self._view.result(rank, ended["value"])
        self._view.done(rank, ended["seconds"])

    def failed(self, rank: int, failure: RankFailure) -> None:
        """The cell has failed on a rank; the error is raised, so it isn't shown here as well."""
        self._view.done(rank, 0.0)


def run_cell(shell: Any, mesh: Mesh, source: str, arguments: argparse.Namespace) -> None:
    """Run a cell on a mesh and show what comes.

    Raises:
        MeshUsageError: if it doesn't compile; nothing is sent then.
        CellFailed: if it raised on any rank.
    """
    ranks = mesh.select(arguments.ranks)
    _check_source(shell, source)
    _check_output_name(arguments.output)
    view = CellView(ranks, len(mesh), more_hint="%mesh logs")
    with LiveDisplay(view):
        view.started()
        result = mesh.run(
            source,
            ranks,
            watcher=ViewWatcher(view),
            number=_cell_number(shell),
            want_value=arguments.output is not None,
            timeout=arguments.timeout,
        )
    if result.failures:
        error = cell_error(result)
        mesh.last_error = CellFailed(error.message, error.failures, error.results, error.num_unfinished)
        raise mesh.last_error
    if arguments.output is not None:
        shell.user_ns[arguments.output] = _value_mesh(mesh, ranks, result)


def _value_mesh(mesh: Mesh, ranks: tuple[int, ...], result: CellResult) -> ValueMesh[Any]:
    whole = len(ranks) == len(mesh)
    extent = mesh.extent if whole else Extent(["ranks"], [len(ranks)])
    return ValueMesh(Shape.full(extent), [result.values.get(r) for r in ranks])


def _check_source(shell: Any, source: str) -> None:
    """Find syntax errors here, once, instead of on every rank."""
    try:
        transformed = shell.transform_cell(source)
        compile(transformed, f"Cell In[{_cell_number(shell)}]", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        raise MeshUsageError(f"this cell is not Python, so nothing was sent to the ranks\n{text}") from None


def _cell_number(shell: Any) -> int:
    """Return the number in front of the running cell; shell.execution_count may be the next one's by now."""
    return max(1, len(shell.history_manager.input_hist_parsed) - 1)


def _check_output_name(name: str | None) -> None:
    if name is not None and not name.isidentifier():
        raise MeshUsageError(f"%%mesh --output takes a variable's name, not {name!r}")
