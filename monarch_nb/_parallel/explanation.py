"""Explains the choice of a strategy: the chosen one, the reason, and the cost of the others."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb._parallel.choice import Candidate, Facts, why_not
from monarch_nb._parallel.dry.outcome import DryRun
from monarch_nb._parallel.sharing import Sharing
from monarch_nb._units import size_text


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of why a module runs as it does. `print` it; a notebook shows it as a table.

    Attributes:
        facts: what the choice depends on.
        ways: all candidates; `taken` is the one in use.
        asked: whether the strategy was given by the user.
        groups: groups of layers whose parameters are gathered together.
        dry: the dry run; None before the first forward.
        apart: parameters that can't be split.
        tied: groups of names of the same parameter.
        slow: why the module runs operation by operation; "" if it runs as a whole.
        sharing: which ranks could share layers (tensor parallelism), and by which plan; None: none could.
    """

    facts: Facts
    ways: tuple[Candidate, ...]
    taken: Candidate
    asked: bool
    groups: tuple[str, ...]
    dry: DryRun | None
    apart: tuple[str, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()
    slow: str = ""
    sharing: Sharing | None = None

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the rows of the explanation, each with a keyword, its subject and a sentence."""
        rows = [(self._word(each), each.name, self._reason(each)) for each in self.ways]
        rows.sort(key=lambda row: row[0] not in ("taken", "asked"))
        return [*rows, *self._shared(), *self._layers()]

    def _shared(self) -> list[tuple[str, str, str]]:
        if self.sharing is None:
            return []
        if not any(way.num_parts > 1 for way in self.ways):
            return [("not", f"TP {self.sharing.num_parts}", self.sharing.reason)]
        return self.sharing.rows()

    def _word(self, way: Candidate) -> str:
        if way == self.taken:
            return "asked" if self.asked else "taken"
        return "not"

    def _reason(self, way: Candidate) -> str:
        cost = f"peak {size_text(way.peak_bytes)} a rank, {size_text(way.sent_bytes)} sent a step"
        if way != self.taken:
            return f"{cost}; {why_not(way, self.taken, self.facts)}"
        if way.strategy == "hsdp":
            parts = self.facts.num_ranks // way.num_replicas
            cost += f"; sharded over {parts} ranks, replicated over {way.num_replicas}"
        if way.strategy == "ddp" or not self.groups:
            return cost
        return f"{cost}; {len(self.groups)} groups ({self.groups[0]} ...) and the rest"

    def _layers(self) -> list[tuple[str, str, str]]:
        rows = [("tied", " = ".join(names), "one parameter") for names in self.tied]
        rows += [("whole", name, "every rank has all of it: it can't be split") for name in self.apart]
        for each in self.dry.findings if self.dry else ():
            text = f"looks across the batch ({each.op.removeprefix('aten.')}: {each.reason}), {each.place}"
            rows.append((
                "whole", f"{each.path or 'the module'} ({each.kind})",
                f"{text}; every rank runs it on the whole batch, "
                f"+{size_text(each.num_bytes)} gathered a forward",
            ))  # fmt: skip
        if self.dry and self.dry.counts_rows:
            text = "rows that count are added up over ranks: one number more a forward"
            rows.append(("counted", "the module's loss", text))
        if self.slow:
            rows.append(("slow", "operation by operation", self.slow))
        return rows

    def _head(self) -> str:
        facts = self.facts
        hosts = f"{facts.num_hosts} host{'s' * (facts.num_hosts > 1)}"
        before = "" if self.dry else "; activations are counted at the first forward"
        return (
            f"{size_text(facts.parameter_bytes)} of parameters, {size_text(facts.state_bytes)} of optimiser "
            f"state, {facts.num_ranks} ranks on {hosts}, {size_text(facts.free_bytes)} of {facts.device} "
            "memory free for each" + before
        )

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[n]) for row in rows) for n in (0, 1)]
        lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        return "\n".join([self._head(), *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>"
            + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in row)
            + "</tr>"
            for row in self.rows()
        )
        return f"<p>{html.escape(self._head())}</p><table>{cells}</table>"


def ties_of(names: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], ...]:
    """Return groups of names that share one parameter.

    >>> ties_of([("a", 1), ("b", 2), ("c", 1)])
    (('a', 'c'),)
    """
    by_id: dict[int, list[str]] = {}
    for name, number in names:
        by_id.setdefault(number, []).append(name)
    return tuple(tuple(each) for each in by_id.values() if len(each) > 1)
