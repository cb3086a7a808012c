"""The profile of a cell: the recordings of ranks as tables; the traces are in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_nb._display.table import html_table, text_table
from monarch_nb._display.template import joined, render
from monarch_nb._protocol.profiles import MemoryReport
from monarch_nb._shape import format_ranks
from monarch_nb.profile.memory import LINE_COLUMNS, SIZE_COLUMNS, line_rows, size_rows
from monarch_nb.profile.operators import Operator, operator_cells

if TYPE_CHECKING:
    from monarch_nb.mesh.cell_run import CellResult

HOW_TO_OPEN = (
    "drop it on https://ui.perfetto.dev, which reads it in your browser, or load it in chrome://tracing"
)
HOW_TO_OPEN_SNAPSHOTS = "drop one on https://pytorch.org/memory_viz, which reads it in your browser"


@dataclass(frozen=True)
class Profile:
    """The profile of a cell. Shows itself as tables.

    Attributes:
        n: the cell's number in the journal.
        ranks: those that have recorded something.
        file: where the trace is; None if none was asked for or there's nothing in it.
        operators: what took time, folded over ranks, the most first.
        memory: by rank, if it was asked for: changes and peaks of sizes in bytes, "lines" of Python that hold
            the most.
        snapshots: CUDA's memory histories, by rank.
        problems: what couldn't be had, and from whom.
        result: how the cell ended.
        num_top: how many rows are shown.

    Example:
        >>> profile = mesh.profile("train_step()")     # doctest: +SKIP
        >>> profile.operators[0].name                   # doctest: +SKIP
        'aten::mm'
    """

    n: int
    ranks: tuple[int, ...]
    file: str | None
    operators: tuple[Operator, ...]
    memory: Mapping[int, MemoryReport]
    snapshots: Mapping[int, str]
    problems: tuple[str, ...]
    result: CellResult
    num_top: int = 20

    def tables(self) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """Yield the title, header and rows of each table."""
        if self.operators:
            head, rows = operator_cells(self.operators[: self.num_top], len(self.ranks))
            left = len(self.operators) - self.num_top
            more = f"; {left} more take less" if left > 0 else ""
            yield (
                (
                    f"operators of cell #{self.n} on [{format_ranks(self.ranks)}], times without what "
                    f"they call{more}"
                ),
                head,
                rows,
            )
        if self.memory:
            yield (
                f"memory over cell #{self.n}, on [{format_ranks(self.memory)}]",
                SIZE_COLUMNS,
                size_rows(self.memory),
            )
            lines = line_rows(self.memory, self.num_top)
            if lines:
                yield "lines that hold what was allocated in Python (no tensors)", LINE_COLUMNS, lines

    def notes(self) -> Iterator[str]:
        """Yield notes for display below the tables: the locations of files, and the parts that are
        missing.
        """
        if self.file is not None:
            yield f"trace of [{format_ranks(self.ranks)}]: {self.file}"
            yield f"to open it: {HOW_TO_OPEN}"
        if self.snapshots:
            yield f"memory histories: {', '.join(self.snapshots.values())}"
            yield f"to open them: {HOW_TO_OPEN_SNAPSHOTS}"
        yield from self.problems

    def text(self) -> str:
        """Return the tables and notes as text."""
        parts = [
            f"{title}\n{text_table(head, rows, right=_right(head))}\n" for title, head, rows in self.tables()
        ]  # fmt: skip
        return "\n".join([*parts, *self.notes()])

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = [
            html_table(head, rows, right=_right(head), title=title) for title, head, rows in self.tables()
        ]
        return str(joined([*tables, *(render("note_line.html", text=note) for note in self.notes())]))


def _right(head: tuple[str, ...]) -> range:
    return range(1 if "ranks" not in head else 2, len(head))
