"""Describes a mesh's state, and the activity of a rank, in words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from monarch_nb._protocol.resources import Collective, Transfers
from monarch_nb._protocol.states import RankState
from monarch_nb._shape import name_hosts, name_ranks
from monarch_nb._units import counted, duration, percent_text, rate_text, size_text

if TYPE_CHECKING:
    from monarch_nb._protocol.programs import Cost
    from monarch_nb.status.model import HostStatus, MeshStatus, RankStatus

MAX_CELLS_NAMED = 4
"""Maximum number of named cells that wait for a rank."""


def status_text(status: MeshStatus) -> str:
    """Return a mesh's state as plain text, one line for what is equal."""
    dims = ", ".join(f"{k}={v}" for k, v in status.sizes)
    up = duration(max(0.0, time.time() - status.started))
    size = f"{counted(len(status.ranks), 'rank')} ({dims})"
    lines = [f"mesh {status.name!r}: {size}, controller pid {status.pid}, up {up}"]
    for state, ranks in status.ranks_by_state().items():
        lines.append(f"  {state:<9} {'rank' if ranks.isdigit() else 'ranks'} {ranks}")
    lines += [f"  host {h.index}: {_host_text(status, h)}" for h in status.hosts]
    lines += _differing_lines(status.hosts)
    lines += _doing_lines(status.ranks)
    lines += [f"  rank {r.rank} {r.state}: {r.reason}" for r in status.ranks if r.reason]
    lines += _transfer_lines(status.ranks)
    if status.is_healing:
        lines.append("  is being healed")
    if status.idle_timeout_s:
        left = "" if status.lease_left_s is None else f"; {duration(status.lease_left_s)} left"
        lines.append(
            f"  lease: ends after {duration(status.idle_timeout_s)} without a client and a running cell{left}"
        )
    if status.ends_at is not None or status.cost is not None:
        lines.append(f"  hosts: {_limit_text(status, time.time())}")
    if status.owner_pid:
        lines.append(f"  ends with its kernel (pid {status.owner_pid})")
    if status.num_cells:
        lines.append(f"  {counted(status.num_cells, 'cell')} running; see %mesh history")
    if status.versions:
        lines.append(
            f"  {', '.join(f'{k} {v}' for k, v in status.versions.items())}; environment {status.environment}"
        )
    if status.journal:
        lines.append(
            "  journal: "
            f"{status.journal}{status.journal_trouble and f'; not written: {status.journal_trouble}'}"
        )
    lines += [f"  client: {c}" for c in status.clients]
    return "\n".join(lines)


def _limit_text(status: MeshStatus, now: float) -> str:
    """Return how long an engine leaves a mesh its hosts, and what they have cost."""
    left_s = None if status.ends_at is None else status.ends_at - now
    left = "" if left_s is None else f"{duration(round(left_s))} left of " if left_s > 0 else "time is up of "
    end = "; more time: %mesh extend 1h" if left_s is not None and left_s > 0 else ""
    return f"{left}{status.job or 'their job'}{cost_text(status.cost, now)}{end}"


def cost_text(cost: Cost | None, now: float) -> str:
    """Return what hosts have cost, to be put behind what they are; empty if that isn't known.

    >>> from monarch_nb._protocol.programs import Cost
    >>> cost_text(Cost(num_gpus=32, usd=57.6, usd_per_hour=64.0, counted_at=0.0), 30.0)
    ', 32 GPUs, about 58.13 $ so far'
    """
    if cost is None:
        return ""
    return f", {counted(cost.num_gpus, 'GPU')}, about {cost.usd_until(now):.2f} $ so far"


def _host_text(status: MeshStatus, host: HostStatus) -> str:
    found = [r.rank for r in status.ranks if r.host == host.index]
    parts = [
        f"{host.hostname} {host.state}",
        counted(host.num_cores, "core") + percent_text(host.cpu_percent, " {} busy"),
    ]
    if host.memory_used_bytes is not None and host.memory_total_bytes:
        parts.append(f"memory {size_text(host.memory_used_bytes)} of {size_text(host.memory_total_bytes)}")
    parts.append(counted(host.num_gpus, "GPU"))
    parts += [
        f"GPU {g.index} {percent_text(g.utilization_percent)} {size_text(g.memory_used_bytes)}"
        for g in host.gpus
    ]
    if host.environment:
        parts.append(f"environment {host.environment}")
    return ", ".join([*parts, name_ranks(found) if found else "no ranks"])


def _differing_lines(hosts: Iterable[HostStatus]) -> list[str]:
    """Return in what hosts differ from the notebook, equal differences once."""
    found: dict[str, list[int]] = {}
    for host in hosts:
        if host.differs:
            found.setdefault(host.differs, []).append(host.index)
    return [f"  {name_hosts(which)} differ{'s' * (len(which) == 1)}: {text}" for text, which in found.items()]


def _doing_lines(ranks: Iterable[RankStatus]) -> list[str]:
    """Return lines on what busy ranks do, equal ones once."""
    found: dict[str, list[RankStatus]] = {}
    for rank in ranks:
        if rank.state in (RankState.BUSY, RankState.DEBUGGING, RankState.UNRESPONSIVE) and rank.doing:
            found.setdefault(rank_text(rank), []).append(rank)
    now = time.time()
    return [
        (
            f"  {name_ranks(r.rank for r in ranks)}: {text}, for "
            f"{duration(max(0.0, now - min(r.since for r in ranks)))}"
        )
        for text, ranks in found.items()
    ]


def _transfer_lines(ranks: Iterable[RankStatus]) -> list[str]:
    """Return the bytes that ranks have moved, a line for each path."""
    found: dict[str, list[tuple[int, Transfers]]] = {}
    for rank in ranks:
        for each in rank.transfers:
            found.setdefault(each.path, []).append((rank.rank, each))
    return [
        (f"  moved by {path}: {_moved_text([t for _, t in all_])} ({name_ranks(r for r, _ in all_)})")
        for path, all_ in found.items()
    ]


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


def _moved_text(all_: Sequence[Transfers]) -> str:
    num_bytes = sum(t.read_bytes + t.written_bytes for t in all_)
    seconds = sum(t.seconds for t in all_)
    rate = f", {rate_text(num_bytes, seconds)}" if seconds else ""
    num = sum(t.num for t in all_)
    return f"{size_text(num_bytes)} in {num} transfer{'s' * (num != 1)}{rate}"
