"""Collects a profile after the cell: the recordings of ranks are fetched, merged and written next to the
notebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb._protocol.profiles import ProfileReport
from monarch_nb._protocol.work import Work
from monarch_nb._shape import name_ranks
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.profile.operators import fold_operators
from monarch_nb.profile.report import Profile
from monarch_nb.profile.request import ProfileRequest
from monarch_nb.profile.trace_file import write_trace

if TYPE_CHECKING:
    from monarch_nb.mesh.cell_run import CellResult
    from monarch_nb.mesh.core import Mesh


def collect(mesh: Mesh, result: CellResult, request: ProfileRequest) -> Profile:
    """Fetch the profile of a cell that has ended, successfully or not, and write its files."""
    living = set(mesh.living_ranks())
    lost = tuple(r for r in request.ranks if r not in living)
    stuck = tuple(r for r in request.ranks if r in result.unfinished)
    asked = tuple(r for r in request.ranks if r in living and r not in stuck)
    answers = work_on(mesh.part(asked), Work.PROFILE, result.n, "profile").get().values() if asked else []
    reports: dict[int, ProfileReport] = {
        rank: answer for rank, answer in zip(asked, answers, strict=True) if answer is not None
    }
    without = tuple(r for r in asked if r not in reports)
    problems = [
        f"no profile of {name_ranks(ranks)}: {why}"
        for ranks, why in ((lost, _LOST), (stuck, _STUCK), (without, _WITHOUT))
        if ranks
    ]
    traced = {rank: report for rank, report in reports.items() if report.trace is not None}
    file = _write(traced, result.n, request, problems)
    return Profile(
        n=result.n,
        ranks=tuple(reports),
        file=None if file is None else str(file),
        operators=tuple(fold_operators({rank: report.operators or [] for rank, report in traced.items()})),
        memory={rank: report.memory for rank, report in reports.items() if report.memory is not None},
        snapshots=_write_snapshots(reports, result.n, request),
        problems=tuple(problems),
        result=result,
        num_top=request.num_top,
    )


_LOST = "the process has died, and its recording is lost"
_STUCK = "it hasn't ended the cell"
_WITHOUT = "the cell didn't begin there, or another cell with a profile has followed"


def _write(
    traced: Mapping[int, ProfileReport], n: int, request: ProfileRequest, problems: list[str]
) -> Path | None:
    if not traced:
        return None
    path = request.path(n)
    try:
        write_trace(path, traced, base_ns=request.base_ns, about=f"cell #{n}")
    except OSError as error:
        problems.append(
            f"the trace could not be written to {path}: {error.strerror}. Name another file: --profile=FILE"
        )
        return None
    return path


def _write_snapshots(reports: Mapping[int, ProfileReport], n: int, request: ProfileRequest) -> dict[int, str]:
    written = {}
    for rank, report in reports.items():
        snapshot = None if report.memory is None else report.memory.cuda_snapshot
        if snapshot is not None:
            path = request.path(n, f"memory-rank{rank}", ".pickle")
            path.write_bytes(snapshot)
            written[rank] = str(path)
    return written
