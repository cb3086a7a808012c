"""The report of `%mesh doctor`: the ranks' hardware and settings, the speed of paths between some of them,
and advice.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from msgspec import to_builtins

from monarch_nb._display.table import html_table, text_table
from monarch_nb._protocol.work import Work
from monarch_nb._shape import format_ranks, name_ranks
from monarch_nb._units import size_text, time_text
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.rdma.doctor import measuring
from monarch_nb.rdma.doctor.advice import CHANGE, NOTE, OK, Advice, Severity
from monarch_nb.rdma.doctor.advice_mesh import advise
from monarch_nb.rdma.doctor.benchmark import SMALL_BYTES, reason
from monarch_nb.rdma.doctor.measuring import MAX_CHOSEN, Measurement
from monarch_nb.rdma.doctor.probe import ProbeResult, described, probe_process

if TYPE_CHECKING:
    from monarch_nb.mesh.core import Mesh

SIZE_BYTES = 64 << 20
PROBE_S = 10.0
MAX_GROUPS = 8
"""Maximum number of different answers of a kind that are displayed."""
_FOUND = ("what", "ranks", "found")
_MEASURED = ("from", "to", "path", "GB/s", "4 KiB", "why not")
_FIGURES = (3, 4)


@dataclass(frozen=True)
class Report:
    """The report of `%mesh doctor`: probes, measurements and advice.

    Attributes:
        name: name of the mesh.
        hosts: the host's index, by rank.
        probes: findings on each rank.
        measurements: measurements of each path between chosen ranks; empty if nothing was measured.
        advice: advice, the most important first.
        silent: ranks that didn't answer, and why.
        size_bytes: how much was read at a time; 0 if nothing was measured.
    """

    name: str
    hosts: Mapping[int, int]
    probes: Mapping[int, ProbeResult]
    measurements: tuple[Measurement, ...]
    advice: tuple[Advice, ...]
    silent: Mapping[int, str]
    size_bytes: int

    def text(self) -> str:
        """Return the report as text; values that several ranks share are listed once."""
        tables = [text_table(_FOUND, self._found_rows())] if self.probes else []
        if self.measurements:
            tables.append(
                f"{self._caption()}\n{text_table(_MEASURED, self._measured_rows(), right=_FIGURES)}"
            )
        return "\n\n".join(
            [
                self._headline(),
                *tables,
                "\n".join(
                    [*self._to_change(), *(f"{text}{_typed(command)}" for text, command in self._remarks())]
                ),
            ]
        )

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(self._headline())}</p>"]
        if self.probes:
            parts.append(html_table(_FOUND, self._found_rows()))
        if self.measurements:
            parts.append(html_table(_MEASURED, self._measured_rows(), right=_FIGURES, title=self._caption()))
        items = "".join(f"<li>{html.escape(str(a))}{_code(a.next)}</li>" for a in self.of(CHANGE))
        parts.append(f"<p>what to change:</p><ol>{items}</ol>" if items else "<p>nothing to change</p>")
        remarks = "".join(
            f"<li>{html.escape(text)}{_code(command)}</li>" for text, command in self._remarks()
        )
        return "".join([*parts, f"<ul>{remarks}</ul>" if remarks else ""])

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data, for JSON."""
        return {
            "name": self.name,
            "hosts": dict(self.hosts),
            "probes": {rank: to_builtins(found) for rank, found in self.probes.items()},
            "measurements": [asdict(m) for m in self.measurements],
            "advice": [asdict(a) for a in self.advice],
            "silent": dict(self.silent),
            "size_bytes": self.size_bytes,
        }

    def of(self, severity: Severity) -> list[Advice]:
        """Return the advice of one severity."""
        return [a for a in self.advice if a.severity == severity]

    def _headline(self) -> str:
        num = len({self.hosts[r] for r in self.probes})
        if not num:
            return f"mesh {self.name!r}: no rank has answered"
        return f"mesh {self.name!r}: {name_ranks(self.probes)} on {num} host{'s' * (num != 1)}"

    def _caption(self) -> str:
        ranks = sorted({r for m in self.measurements for r in (m.source, m.reader)})
        if not self.size_bytes:
            return f"small reads between {name_ranks(ranks)}"
        return f"reads of {size_text(self.size_bytes)} between {name_ranks(ranks)}; others: --ranks"

    def _found_rows(self) -> list[tuple[str, str, str]]:
        return folded({rank: described(found) for rank, found in self.probes.items()})

    def _measured_rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table of measurements: one for each measurement, or for each reason why
        there is none.
        """
        rows: list[tuple[str, ...]] = [
            (
                _path_end([m.source], m.source_device),
                _path_end([m.reader], m.reader_device),
                m.path,
                "" if m.gb_per_s is None else f"{m.gb_per_s:.3g}",
                "" if m.latency_s is None else time_text(m.latency_s),
                "",
            )
            for m in self.measurements
            if not m.why_not
        ]
        refused: dict[tuple[str, str, str, str], list[Measurement]] = {}
        for m in self.measurements:
            if m.why_not:
                refused.setdefault((m.source_device, m.reader_device, m.path, m.why_not), []).append(m)
        for (there, here, path, why_not), same in refused.items():
            rows.append(
                (
                    _path_end([m.source for m in same], there),
                    _path_end([m.reader for m in same], here),
                    path,
                    "",
                    "",
                    why_not,
                )
            )
        return rows

    def _to_change(self) -> list[str]:
        changes = self.of(CHANGE)
        if not changes:
            return ["nothing to change"]
        return ["what to change:", *(f"{n}. {a}{_typed(a.next)}" for n, a in enumerate(changes, 1))]

    def _remarks(self) -> list[tuple[str, str]]:
        """Return lines of text, each with the command to type next."""
        silent = [(f"rank {rank} was not probed: {why}", "") for rank, why in sorted(self.silent.items())]
        return [
            *silent,
            *((f"note: {a}", a.next) for a in self.of(NOTE)),
            *((f"fine: {a}", "") for a in self.of(OK)),
        ]


def _typed(command: str) -> str:
    return f"\n    next: {command}" if command else ""


def _code(command: str) -> str:
    return f"<br>next: <code>{html.escape(command)}</code>" if command else ""


def _path_end(ranks: Sequence[int], device: str) -> str:
    return format_ranks(ranks) if device == "cpu" else f"{format_ranks(ranks)} {device}"


def folded(by_rank: Mapping[int, Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """Return rows (topic, ranks, value): each distinct value of a topic once, the most frequent first.

    >>> folded({0: {"GPUs": "none"}, 1: {"GPUs": "8"}, 2: {"GPUs": "none"}})
    [('GPUs', '[0,2]', 'none'), ('', '[1]', '8')]
    """
    rows = []
    for what in dict.fromkeys(name for lines in by_rank.values() for name in lines):
        ranks: dict[str, list[int]] = {}
        for rank, lines in by_rank.items():
            if what in lines:
                ranks.setdefault(lines[what], []).append(rank)
        groups = sorted(ranks.items(), key=lambda group: (-len(group[1]), group[1]))
        found = [(f"[{format_ranks(where)}]", value) for value, where in groups[:MAX_GROUPS]]
        rest = [rank for _, where in groups[MAX_GROUPS:] for rank in where]
        found += [(f"[{format_ranks(rest)}]", f"{len(groups) - MAX_GROUPS} more")] if rest else []
        rows += [(what if i == 0 else "", where, value) for i, (where, value) in enumerate(found)]
    return rows


def diagnose(
    mesh: Mesh,
    ranks: str | Sequence[int] = "",
    size_bytes: int = SIZE_BYTES,
    measures: bool = True,
    *,
    all_paths: bool = False,
) -> Report:
    """Probe ranks, measure the paths between them, and return a report with advice on what to change.

    Args:
        ranks: which ones; by default all are probed, and representatives of their hosts are measured.
        size_bytes: the size of each read.
        measures: if false, ranks are only probed, and tested for whether those of one host can read each
            other's memory.
        all_paths: measure also the path through the mesh's own messages.

    Raises:
        MeshUsageError: if so many ranks or so few bytes can't be measured.
        RankSetError: if the mesh has no such ranks.
    """
    if size_bytes < SMALL_BYTES:
        raise MeshUsageError(f"{size_bytes} bytes are too few to measure with: at least {SMALL_BYTES}")
    chosen = _chosen(mesh, ranks)
    if chosen and measures and len(chosen) > MAX_CHOSEN:
        raise MeshUsageError(
            f"{len(chosen)} ranks have too many pairs to measure: choose at most {MAX_CHOSEN}, or "
            "only look: --quick"
        )
    probes, silent = _probe_ranks(mesh, chosen or range(len(mesh)))
    hosts = measuring.hosts_of(mesh)
    several = (
        tuple(probes)[:MAX_CHOSEN] if chosen else measuring.representatives({r: hosts[r] for r in probes})
    )
    found = (
        measuring.measure(mesh, several, size_bytes, all_paths=all_paths)
        if measures
        else measuring.probe(mesh, several)
    )
    return Report(
        mesh.name,
        hosts,
        probes,
        tuple(found),
        tuple(advise(probes, found)),
        silent,
        size_bytes if measures else 0,
    )


def _chosen(mesh: Mesh, ranks: str | Sequence[int] | None) -> tuple[int, ...]:
    if ranks is None or (isinstance(ranks, Sequence) and not ranks):
        return ()
    return mesh.select(ranks)


def _probe_ranks(mesh: Mesh, ranks: Sequence[int]) -> tuple[dict[int, ProbeResult], dict[int, str]]:
    """Probe all ranks at once. Return the results, and for each rank that is busy or dead the reason why it
    has none.
    """
    asked = {
        rank: work_on(mesh.part([rank]), Work.EXECUTE, (probe_process, (), {}), "doctor") for rank in ranks
    }
    deadline = time.monotonic() + PROBE_S
    found: dict[int, ProbeResult] = {}
    silent: dict[int, str] = {}
    for rank, answer in asked.items():
        try:
            found[rank] = answer.get(max(0.0, deadline - time.monotonic())).item()
        except MeshError as error:
            silent[rank] = reason(error)
    return found, silent
