"""The report on a hang: a table of what each rank waits for, and the diagnoses as sentences."""

from __future__ import annotations

import html
from dataclasses import dataclass

from monarch_nb._protocol.states import RankState, StacksBy
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._units import duration
from monarch_nb._why.diagnoses import Diagnosis, Situation
from monarch_nb._why.facts import Activity, RankFacts

_HEAD = ("ranks", "state", "line", "operation", "tensor", "waits")


@dataclass(frozen=True)
class RankRow:
    """The activity of one thread of a rank, as a row of the report.

    Attributes:
        label: "cell #17", or an actor's endpoint.
        line: the user's innermost line, and the function that it has called.
        operation: collective, sequence number and group; or the object that it is blocked on.
        tensor: shape and dtype.
        waited_s: how long it has been in the operation, if known.
        how: source of this information: asked, faulthandler, py-spy.
    """

    rank: int
    state: RankState
    label: str = ""
    line: str = ""
    operation: str = ""
    tensor: str = ""
    waited_s: float | None = None
    how: str = StacksBy.ASKED


@dataclass(frozen=True)
class HangReport:
    """The report on a hang: why nothing moves, as rows and diagnoses.

    Attributes:
        diagnoses: the diagnoses, the most certain first.
    """

    rows: tuple[RankRow, ...]
    diagnoses: tuple[Diagnosis, ...]

    @property
    def sentence(self) -> str:
        """The text of the first diagnosis."""
        return self.diagnoses[0].text

    def text(self) -> str:
        """Return the report as text; equal rows once."""
        table = [_HEAD, *_folded(self.rows)]
        widths = [max(len(row[i]) for row in table) for i in range(len(_HEAD))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return "\n".join([*self._text_lines(), "", *lines])

    def _text_lines(self) -> list[str]:
        return [v.text + (f"\n    next: {v.next}" if v.next else "") for v in self.diagnoses]

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        html_lines = "".join(
            f"<p>{html.escape(v.text)}"
            + (f"<br>next: <code>{html.escape(v.next)}</code>" if v.next else "")
            + "</p>"
            for v in self.diagnoses
        )
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in _folded(self.rows)
        )
        return f"{html_lines}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def make_report(situation: Situation, diagnoses: tuple[Diagnosis, ...]) -> HangReport:
    """Return the report of a situation."""
    rows = [row for rank in situation.ranks.values() for row in _rows(rank, situation.now)]
    return HangReport(tuple(rows), diagnoses)


def _rows(rank: RankFacts, now: float) -> list[RankRow]:
    if rank.silent:
        return [RankRow(rank.rank, rank.state, line=rank.silent, how=rank.how)]
    if not rank.activities:
        return [RankRow(rank.rank, rank.state, line=rank.reason, how=rank.how)]
    return [_row(rank, activity, now) for activity in rank.activities]


def _row(rank: RankFacts, activity: Activity, now: float) -> RankRow:
    operation = activity.operation
    line = activity.where.removeprefix("in ")
    if operation is None:
        waits = "; ".join(c.what + (f" on {name_ranks(c.ranks)}" if c.ranks else "") for c in activity.calls)
        return RankRow(rank.rank, rank.state, activity.label, line, waits or activity.kind)
    waited_s = None if operation.since is None else max(0.0, now - operation.since)
    return RankRow(
        rank.rank, rank.state, activity.label, line, operation.text(), operation.tensor_text(), waited_s
    )


def _folded(rows: tuple[RankRow, ...]) -> list[tuple[str, ...]]:
    """Return the table's rows, equal ones once; the longest wait of each."""
    found: dict[tuple[str, ...], list[RankRow]] = {}
    for row in rows:
        how = "" if row.how in ("", StacksBy.ASKED) else f" ({row.how})"
        label = f"{row.label}: " if row.label and not row.label.startswith("cell #") else ""
        found.setdefault((row.state, label + row.line + how, row.operation, row.tensor), []).append(row)
    table = []
    for key, same in found.items():
        waits = [r.waited_s for r in same if r.waited_s is not None]
        table.append(
            (format_ranks(r.rank for r in same), *key, duration(round(max(waits), 1)) if waits else "")
        )
    return table
