"""The one snapshot of a mesh: everything that shows its state renders this."""

from __future__ import annotations

import html
import time
from dataclasses import dataclass
from typing import Any

from monarch_nb._shape import format_ranks


@dataclass(frozen=True)
class HostStatus:
    """A machine of a mesh."""

    index: int
    hostname: str
    state: str
    pid: int
    num_cores: int
    num_gpus: int


@dataclass(frozen=True)
class RankStatus:
    """One rank: its state is starting, running, unresponsive (it lives, but doesn't react), stopped or lost."""

    rank: int
    host: int
    pid: int
    state: str
    reason: str = ""


@dataclass(frozen=True)
class MeshStatus:
    """A mesh at one moment.

    Attributes:
        sizes: the dimensions.
        idle_timeout_s: seconds without a client after which it ends; None: it ends with its program.
        clients: who is connected: "notebook PATH (pid N)".
        num_cells: cells that run or wait.
        journal: directory of its journal.
    """

    name: str
    pid: int
    started: float
    sizes: tuple[tuple[str, int], ...]
    idle_timeout_s: float | None
    hosts: tuple[HostStatus, ...]
    ranks: tuple[RankStatus, ...]
    clients: tuple[str, ...]
    num_cells: int = 0
    journal: str = ""

    def ranks_by_state(self) -> dict[str, str]:
        """Return the rank set in each state."""
        found: dict[str, list[int]] = {}
        for rank in self.ranks:
            found.setdefault(rank.state, []).append(rank.rank)
        return {state: format_ranks(ranks) for state, ranks in found.items()}

    def text(self) -> str:
        """Return this as plain text."""
        dims = ", ".join(f"{k}={v}" for k, v in self.sizes)
        lines = [f"mesh {self.name!r}: {len(self.ranks)} ranks ({dims}), home pid {self.pid}, up {self._age()}"]
        lines += [f"  {state:<9} ranks {ranks}" for state, ranks in self.ranks_by_state().items()]
        lines += [
            f"  host {h.index}: {h.hostname} {h.state}, {h.num_cores} cores, {h.num_gpus} GPUs, "
            f"ranks {format_ranks(r.rank for r in self.ranks if r.host == h.index) or 'none'}"
            for h in self.hosts
        ]
        lines += [f"  rank {r.rank} {r.state}: {r.reason}" for r in self.ranks if r.reason]
        if self.idle_timeout_s:
            lines.append(f"  lease: ends after {duration(self.idle_timeout_s)} without a client and a running cell")
        if self.num_cells:
            lines.append(f"  {self.num_cells} cell{'s' * (self.num_cells > 1)} running; see %mesh history")
        if self.journal:
            lines.append(f"  journal: {self.journal}")
        lines += [f"  client: {c}" for c in self.clients]
        return "\n".join(lines)

    def _age(self) -> str:
        return duration(max(0.0, time.time() - self.started))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"

    def as_dict(self) -> dict[str, Any]:
        """Return this as plain data, for JSON."""
        from dataclasses import asdict

        return asdict(self)


def duration(seconds: float) -> str:
    """Return a duration as people write it: 90 s, 5 min, 8 h.

    >>> duration(28800)
    '8 h'
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def parse_duration(text: str) -> float:
    """Return the seconds in `90`, `90s`, `5m`, `8h` or `2d`.

    Raises:
        ValueError: saying what was expected.

    >>> parse_duration("8h")
    28800.0
    """
    units = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        seconds = float(number) * units[unit]
    except (ValueError, KeyError):
        raise ValueError(f"a duration is a number with s, m, h or d, as in 90s or 8h; not {text!r}") from None
    if seconds <= 0:
        raise ValueError(f"a duration must be more than 0, not {text!r}")
    return seconds


def snapshot(books: dict[str, Any], group: str, sizes: dict[str, int]) -> MeshStatus:
    """Return the snapshot of one mesh from the home's books."""
    procs = [p for p in books["procs"] if p["group"] == group]
    return MeshStatus(
        name=books["name"],
        pid=books["pid"],
        started=books["started"],
        sizes=tuple(sizes.items()),
        idle_timeout_s=books["idle_timeout_s"],
        hosts=tuple(_host(h) for h in books["hosts"]),
        ranks=tuple(_rank(p) for p in sorted(procs, key=lambda p: p["rank"])),
        clients=tuple(f"{c['what']} (pid {c['pid']})" for c in books["clients"]),
        num_cells=books["num_cells"],
        journal=books["journal"],
    )


def _host(row: dict[str, Any]) -> HostStatus:
    return HostStatus(
        row["index"], row["hostname"] or row["label"], row["state"], row["pid"], row["num_cores"], row["num_gpus"]
    )


def _rank(row: dict[str, Any]) -> RankStatus:
    from monarch_nb.exceptions import describe_end

    reason = describe_end(row["end"]) if row["end"] is not None and row["state"] == "lost" else row["trouble"]
    state = "unresponsive" if row["trouble"] and row["state"] == "running" else row["state"]
    return RankStatus(row["rank"], row["proc"] >> 32, row["pid"], state, reason)
