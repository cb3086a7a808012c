"""Keeps cells whose definitions all ranks of the mesh have, also ranks that are started later (`%%mesh
--always`): ranks that were healed, restarted or added run them first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb._cells import DefinitionCell, with_definitions
from monarch_nb._host.controller.workflow import Workflow
from monarch_nb._protocol.cells import CellOver, ForgetDefinitions, RunCell
from monarch_nb._protocol.healing import Report
from monarch_nb._protocol.registry import Sender, handles
from monarch_nb._protocol.states import CellStatus, ProcState
from monarch_nb._shape import format_ranks, name_ranks

if TYPE_CHECKING:
    from monarch_nb._host.controller.cells import Cells
    from monarch_nb._host.controller.registry import Group, Registry

CELL_S = 60.0
"""Limit for such a cell on new ranks: it can't wait for ranks that don't take part."""


class Definitions:
    """The service that keeps the cells which every new rank of a group runs first. Owned by the loop
    thread.
    """

    def __init__(self, registry: Registry, cells: Cells) -> None:
        self._registry, self._runs = registry, cells
        self._cells: dict[str, tuple[DefinitionCell, ...]] = {}
        """Cells by group, in the order in which they run."""
        self._restarted: set[int] = set()

    def add(self, group: str, cell: DefinitionCell) -> None:
        """Keep a cell that has ended well on all ranks of a group: it runs on later ranks, too."""
        self._cells[group] = with_definitions(self._cells.get(group, ()), cell)

    @handles(ForgetDefinitions)
    def do_forget(self, request: ForgetDefinitions, sender: Sender) -> int:
        """Forget the cells that run on new ranks; return how many there were."""
        num = sum(map(len, self._cells.values()))
        self._cells.clear()
        return num

    def run(self, group: Group, ranks: Mapping[int, int], report: Report) -> Workflow[None]:
        """Run the cells on new ranks (numbers to procs), one after the other; report those that fail as
        problems.
        """
        procs = self._registry.procs
        up = {rank: proc for rank, proc in ranks.items() if procs[proc].state == ProcState.RUNNING}
        done = []
        for cell in self._cells.get(group.name, ()) if up else ():
            over: CellOver = yield partial(self._run, cell, group, up)
            if over.status == CellStatus.OK:
                done.append(cell.n)
            else:
                report.problems.append(_problem(cell, over))
        if done:
            numbers = ", #".join(map(str, done))
            report.messages.append(f"{name_ranks(up)} ran cell{'s' * (len(done) > 1)} #{numbers} (--always)")

    def _run(
        self, cell: DefinitionCell, group: Group, ranks: Mapping[int, int], go_on: Callable[[Any], None]
    ) -> None:
        request = RunCell(
            cell.source, list(ranks), list(ranks.values()), format_ranks(ranks), group.name, cell.number,
            group.context, timeout_s=CELL_S, replay_of=cell.n,
        )  # fmt: skip
        self._runs.begin_cell(request, "the host process", when_over=go_on)

    # --- restarts for whose report nobody waits

    def restarting(self, procs: list[int]) -> None:
        """Note that ranks are being restarted by hand: cells are run on them once they're up."""
        self._restarted.update(procs)

    def rank_is_up(self, proc: int) -> None:
        """Run the cells on a rank that has restarted, before it is sent other work."""
        if proc not in self._restarted:
            return
        self._restarted.discard(proc)
        entry = self._registry.procs[proc]
        group = self._registry.groups[entry.group]
        for cell in self._cells.get(group.name, ()):
            self._run(cell, group, {entry.rank: proc}, lambda _over: None)


def _problem(cell: DefinitionCell, over: CellOver) -> str:
    failure = over.failures[0] if over.failures else None
    why = f"{failure.type}: {failure.message}" if failure is not None else over.reason or over.status
    return (
        f"cell #{cell.n}, which runs always, failed on new ranks: {why}. Run it again: %mesh rerun {cell.n}"
    )
