"""The one snapshot of a mesh: everything that shows its state renders this.

Pure data. The controller makes it (`_host/status_publisher`), `Mesh.status()` returns it, and the text here,
the widget, the server extension, the sidebar and the command line show it. Times are seconds since the epoch;
what isn't known is None.
"""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from monarch_nb._protocol.states import HostState, RankState
from monarch_nb._shape import format_ranks

STATES = tuple(RankState)
TROUBLED = (RankState.LOST, RankState.UNRESPONSIVE, RankState.STOPPED)
MAX_CELLS_NAMED = 4
"""Of those that wait for a rank."""
MAX_DURATION_S = 3650 * 86400
"""What somebody may ask for; clocks and locks can't take any number."""


@dataclass(frozen=True)
class GpuStatus:
    """A GPU, as NVIDIA's driver sees it: shares in per cent, memory in bytes; `processes` are those of
    others, too.
    """

    index: int
    name: str
    uuid: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_c: float | None
    processes: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class History:
    """The last minutes of a machine, oldest first, in per cent; the GPUs' average."""

    interval_s: float
    cpu_percent: tuple[float | None, ...]
    memory_percent: tuple[float | None, ...]
    gpu_percent: tuple[float | None, ...]


@dataclass(frozen=True)
class HostStatus:
    """A machine of a mesh."""

    index: int
    hostname: str
    state: HostState
    pid: int
    num_cores: int
    num_gpus: int
    cpu_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    gpus: tuple[GpuStatus, ...]
    history: History


@dataclass(frozen=True)
class Collective:
    """The operation of a process group that a rank is in.

    Attributes:
        sequence: how many of the group's operations the rank has entered, this one included; 0 if the backend
            doesn't count.
        shape: of its (first) tensor.
    """

    name: str
    sequence: int
    since: float
    shape: tuple[int, ...] | None = None
    dtype: str = ""


@dataclass(frozen=True)
class Transfers:
    """What a rank has moved by one path of the data plane, as far as it asked for it.

    Attributes:
        path: `shm`, `cuda_ipc`, `verbs`, `tcp`, ...
        num: transfers.
        seconds: that they took, one after the other.
    """

    path: str
    num: int
    read_bytes: int
    written_bytes: int
    seconds: float


@dataclass(frozen=True)
class RankStatus:
    """One rank.

    Attributes:
        state: idle, busy, lost ...; equal to its word.
        reason: why it's lost or unresponsive.
        doing: what it's busy with: "cell #17", "Trainer.step".
        since: since when.
        cell: number of the running cell in the journal.
        line: where it stands: "In [3], line 4: loss.backward()".
        memory_bytes: proportional set size: what it shares is divided by how many share it.
        gpus: indices of its host's GPUs that are its own.
        num_queued: messages and cells that wait for it.
        cells_waiting: numbers of those cells, the next one first.
        transfers: what it has moved through the data plane, by path.
    """

    rank: int
    host: int
    pid: int
    state: RankState
    reason: str = ""
    doing: str = ""
    since: float = 0.0
    cell: int | None = None
    line: str = ""
    collective: Collective | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    gpu_memory_bytes: int | None = None
    last_line: str = ""
    num_queued: int = 0
    cells_waiting: tuple[int, ...] = ()
    transfers: tuple[Transfers, ...] = ()


@dataclass(frozen=True)
class MeshStatus:
    """A mesh at one moment.

    Attributes:
        sizes: the dimensions, outermost first.
        idle_timeout_s: seconds without a client after which it ends; None: it ends with its program.
        lease_left_s: seconds until then; None while a client or a cell holds it.
        clients: who is connected: "notebook PATH (pid N)".
        kernels: Jupyter's ids of the kernels among them, and when each has made this the mesh that it uses.
        num_cells: cells that run or wait.
        is_healing: whether lost ranks are being put back just now.
        on_failure: what is done when a rank dies: stop, heal, shrink or call.
        journal: directory of its journal.
        journal_trouble: why it can't be written just now; empty if it can.
        versions: of Python and packages.
        environment: short hash of versions and variables; equal for equal environments.
        owner_pid: of the process that the mesh ends with, as those do that have been started --with-kernel.
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
    journal_trouble: str = ""
    lease_left_s: float | None = None
    is_healing: bool = False
    on_failure: str = "stop"
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""
    owner_pid: int | None = None
    kernels: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> MeshStatus:
        """Return the snapshot that `as_dict` has described."""
        return cls(
            **{
                **data,
                "sizes": tuple((label, size) for label, size in data["sizes"]),
                "clients": tuple(data["clients"]),
                "hosts": tuple(_host(row) for row in data["hosts"]),
                "ranks": tuple(_rank(row) for row in data["ranks"]),
            }
        )

    def as_dict(self) -> dict[str, Any]:
        """Return this as plain data, for JSON."""
        return asdict(self)

    def ranks_by_state(self) -> dict[str, str]:
        """Return the rank set in each state."""
        found: dict[str, list[int]] = {}
        for rank in self.ranks:
            found.setdefault(rank.state, []).append(rank.rank)
        return {state: format_ranks(found[state]) for state in STATES if state in found}

    @property
    def health(self) -> str:
        """ok, busy, or trouble: ranks or hosts are lost, or don't react."""
        if any(r.state in TROUBLED for r in self.ranks) or any(h.state == HostState.LOST for h in self.hosts):
            return "trouble"
        return "busy" if any(r.state in (RankState.BUSY, RankState.DEBUGGING) for r in self.ranks) else "ok"

    def text(self) -> str:
        """Return this as plain text, one line for what is equal."""
        dims = ", ".join(f"{k}={v}" for k, v in self.sizes)
        lines = [
            (
                f"mesh {self.name!r}: {len(self.ranks)} ranks ({dims}), controller pid {self.pid}, up "
                f"{self._age()}"
            )
        ]
        lines += [f"  {state:<9} ranks {ranks}" for state, ranks in self.ranks_by_state().items()]
        lines += [f"  host {h.index}: {self._host_text(h)}" for h in self.hosts]
        lines += self._doing_lines()
        lines += [f"  rank {r.rank} {r.state}: {r.reason}" for r in self.ranks if r.reason]
        lines += self._transfer_lines()
        if self.is_healing:
            lines.append("  is being healed")
        if self.idle_timeout_s:
            left = "" if self.lease_left_s is None else f"; {duration(self.lease_left_s)} left"
            lines.append(
                f"  lease: ends after {duration(self.idle_timeout_s)} without a client and a running "
                f"cell{left}"
            )
        if self.owner_pid:
            lines.append(f"  ends with its kernel (pid {self.owner_pid})")
        if self.num_cells:
            lines.append(f"  {self.num_cells} cell{'s' * (self.num_cells > 1)} running; see %mesh history")
        if self.versions:
            lines.append(
                f"  {', '.join(f'{k} {v}' for k, v in self.versions.items())}; environment {self.environment}"
            )
        if self.journal:
            lines.append(
                "  journal: "
                f"{self.journal}{self.journal_trouble and f'; not written: {self.journal_trouble}'}"
            )
        lines += [f"  client: {c}" for c in self.clients]
        return "\n".join(lines)

    def _host_text(self, host: HostStatus) -> str:
        ranks = format_ranks(r.rank for r in self.ranks if r.host == host.index) or "none"
        parts = [
            f"{host.hostname} {host.state}",
            f"{host.num_cores} cores" + percent_text(host.cpu_percent, " {} busy"),
        ]
        if host.memory_used_bytes is not None and host.memory_total_bytes:
            parts.append(
                f"memory {bytes_text(host.memory_used_bytes)} of {bytes_text(host.memory_total_bytes)}"
            )
        parts.append(f"{host.num_gpus} GPUs")
        parts += [
            f"GPU {g.index} {percent_text(g.utilization_percent)} {bytes_text(g.memory_used_bytes)}"
            for g in host.gpus
        ]
        return ", ".join([*parts, f"ranks {ranks}"])

    def _doing_lines(self) -> list[str]:
        """Return what busy ranks do, equal things once."""
        found: dict[str, list[RankStatus]] = {}
        for rank in self.ranks:
            if rank.state in (RankState.BUSY, RankState.DEBUGGING, RankState.UNRESPONSIVE) and rank.doing:
                found.setdefault(rank_text(rank), []).append(rank)
        now = time.time()
        return [
            (
                f"  ranks {format_ranks(r.rank for r in ranks)}: {text}, for "
                f"{duration(max(0.0, now - min(r.since for r in ranks)))}"
            )
            for text, ranks in found.items()
        ]

    def _transfer_lines(self) -> list[str]:
        """Return what ranks have moved, a line for each path."""
        found: dict[str, list[tuple[int, Transfers]]] = {}
        for rank in self.ranks:
            for each in rank.transfers:
                found.setdefault(each.path, []).append((rank.rank, each))
        return [
            (
                f"  moved by {path}: {_moved_text([t for _, t in all_])} (ranks "
                f"{format_ranks(r for r, _ in all_)})"
            )
            for path, all_ in found.items()
        ]

    def _age(self) -> str:
        return duration(max(0.0, time.time() - self.started))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"


class Versioned:
    """A mesh's state in rows, each with the number of its last change: what is new since a given change is
    found without comparing states.

    Args:
        order: the keys of the ranks' rows, in order.
        reset_at: number of the change before which all is to be sent anew.

    Example:
        >>> versioned = Versioned((7,))
        >>> versioned.put_rank(7, {"state": "idle"})
        >>> seen = versioned.version
        >>> versioned.put_rank(7, {"state": "busy"})
        >>> versioned.changed_since(seen)["ranks"]
        [{'state': 'busy'}]
    """

    def __init__(self, order: tuple[int, ...], reset_at: int = 0) -> None:
        self.order = order
        self.reset_at = self.version = reset_at
        self._head: dict[str, Any] = {}
        self._head_versions: dict[str, int] = {}
        self._hosts: dict[int, dict[str, Any]] = {}
        self._ranks: dict[int, dict[str, Any]] = {}
        self._host_versions: dict[int, int] = {}
        self._rank_versions: dict[int, int] = {}

    def put_head(self, head: Mapping[str, Any]) -> None:
        """Take what concerns the mesh as a whole."""
        for name, value in head.items():
            if name not in self._head or self._head[name] != value:
                self.version += 1
                self._head[name], self._head_versions[name] = value, self.version

    def put_host(self, index: int, row: dict[str, Any]) -> None:
        """Take a host's row; an empty one: there's no such host."""
        self._put(self._hosts, self._host_versions, index, row)

    def put_rank(self, key: int, row: dict[str, Any]) -> None:
        """Take a rank's row."""
        self._put(self._ranks, self._rank_versions, key, row)

    def _put(self, rows: dict[int, Any], versions: dict[int, int], key: int, row: dict[str, Any]) -> None:
        if rows.get(key) != row:
            self.version += 1
            rows[key], versions[key] = row, self.version

    def put_all(
        self, head: Mapping[str, Any], hosts: Iterable[dict[str, Any]], ranks: Iterable[dict[str, Any]]
    ) -> None:
        """Take a snapshot or a change; ranks are known by their number."""
        self.put_head(head)
        for host in hosts:
            self.put_host(host["index"], host)
        for rank in ranks:
            self.put_rank(rank["rank"], rank)

    def unseen_changes(self, seen: int) -> dict[str, Any] | None:
        """Return what is new since change number `seen` (-1: all): {"full": ...}, a change, or None."""
        if self.version <= seen:
            return None
        return self.full() if seen < self.reset_at else self.changed_since(seen)

    def full(self) -> dict[str, Any]:
        """Return {"full": all of it}."""
        hosts = [row for row in self._hosts.values() if row]
        return {"full": {**self._head, "hosts": hosts, "ranks": [self._ranks[key] for key in self.order]}}

    def changed_since(self, seen: int) -> dict[str, Any]:
        """Return what has changed since change number `seen`: "mesh" fields, "hosts" and "ranks" rows."""
        return {
            "mesh": {
                name: self._head[name] for name, version in self._head_versions.items() if version > seen
            },
            "hosts": [
                self._hosts[i]
                for i, version in self._host_versions.items()
                if version > seen and self._hosts[i]
            ],
            "ranks": [self._ranks[key] for key, version in self._rank_versions.items() if version > seen],
        }


def apply(status: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a snapshot (as plain data) with a change of `Versioned` applied; `status` is left as it is."""
    if "full" in change:
        return dict(change["full"])
    hosts = {h["index"]: h for h in (*status["hosts"], *change["hosts"])}
    ranks = {r["rank"]: r for r in (*status["ranks"], *change["ranks"])}
    return {
        **status,
        **change["mesh"],
        "hosts": [hosts[i] for i in sorted(hosts)],
        "ranks": [ranks[i] for i in sorted(ranks)],
    }


def summary(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row that stands for a mesh in a list: name, pid, sizes, number of ranks in each state,
    kernels that use it.
    """
    states: dict[str, int] = {}
    for rank in status["ranks"]:
        states[rank["state"]] = states.get(rank["state"], 0) + 1
    known = {key: status[key] for key in ("name", "pid", "sizes")}
    return {**known, "states": states, "trouble": "", "kernels": status.get("kernels", {})}


def rank_text(rank: RankStatus) -> str:
    """Return what a rank does, in words."""
    parts = [
        f"{rank.state} with {rank.doing}" if rank.state == RankState.BUSY else f"{rank.state} in {rank.doing}"
    ]
    if rank.collective is not None:
        parts.append(f"in {collective_text(rank.collective)}")
    if rank.line:
        parts.append(f"at {rank.line}")
    return ", ".join(parts) + waiting_text(rank.cells_waiting)


def waiting_text(cells: Sequence[int]) -> str:
    """Return which cells wait, to be put behind what they wait for; empty if none does.

    >>> waiting_text([4, 5])
    '; cells #4, #5 wait'
    """
    if not cells:
        return ""
    names = ", ".join(f"#{n}" for n in cells[:MAX_CELLS_NAMED]) + (
        ", ..." if len(cells) > MAX_CELLS_NAMED else ""
    )
    return f"; cell {names} waits" if len(cells) == 1 else f"; cells {names} wait"


def collective_text(collective: Collective) -> str:
    """Return an operation in words: "all_reduce #41 float32[1024]"."""
    number = f" #{collective.sequence}" if collective.sequence else ""
    shape = (
        "" if collective.shape is None else f" {collective.dtype}[{', '.join(map(str, collective.shape))}]"
    )
    return f"{collective.name}{number}{shape}"


def bytes_text(num: int | None) -> str:
    """Return a size as people write it; "n/a" if it isn't known.

    >>> bytes_text(1_310_000_000)
    '1.31 GB'
    """
    if num is None:
        return "n/a"
    size = float(num)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def percent_text(share: float | None, form: str = "{}") -> str:
    """Return a share as text; nothing if it isn't known."""
    return "" if share is None else form.format(f"{share:.0f}%")


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
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"a duration is more than 0 and at most {MAX_DURATION_S // 86400} d, not {text!r}")
    return seconds


def _moved_text(all_: Sequence[Transfers]) -> str:
    num_bytes = sum(t.read_bytes + t.written_bytes for t in all_)
    seconds = sum(t.seconds for t in all_)
    rate = f", {num_bytes / seconds / 1e9:.3g} GB/s" if seconds else ""
    num = sum(t.num for t in all_)
    return f"{bytes_text(num_bytes)} in {num} transfer{'s' * (num != 1)}{rate}"


def _host(row: Mapping[str, Any]) -> HostStatus:
    gpus = tuple(GpuStatus(**{**gpu, "processes": tuple(gpu["processes"])}) for gpu in row["gpus"])
    history = History(row["history"]["interval_s"], *(tuple(row["history"][k]) for k in _SERIES))
    return HostStatus(**{**row, "state": HostState(row["state"]), "gpus": gpus, "history": history})


_SERIES = ("cpu_percent", "memory_percent", "gpu_percent")


def _rank(row: Mapping[str, Any]) -> RankStatus:
    found = row["collective"]
    collective = None
    if found is not None:
        shape = found.get("shape")
        collective = Collective(**{**found, "shape": None if shape is None else tuple(shape)})
    transfers = tuple(Transfers(**each) for each in row.get("transfers", ()))
    tuples = {
        "gpus": tuple(row["gpus"]),
        "cells_waiting": tuple(row.get("cells_waiting", ())),
        "transfers": transfers,
    }
    return RankStatus(**{**row, **tuples, "state": RankState(row["state"]), "collective": collective})
