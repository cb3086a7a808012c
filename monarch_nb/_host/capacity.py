"""Computes how many processes this machine has room for, so that a mistyped number is refused before it
exhausts the memory.

There are two bounds. What is more than the first is probably a mistake, and must be asked for by force; what
is more than the second can't be.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from monarch_nb._units import size_text
from monarch_nb._wire.granted import granted_cores, own_groups

RANK_BYTES = 32 << 20
"""Private memory of an idle rank with torch, at least."""
LEAST_RANK_BYTES = 4 << 20
RANKS_PER_CORE = 64
FEW_RANKS = 256
"""Number of ranks that may share few cores."""
TRIED_RANKS = 8
"""Number of ranks that are started without a check."""
THREADS_PER_RANK = 5
FILES_PER_RANK = 6
"""Number of descriptors that the host process opens for a rank."""
MOST_RANKS = 1 << 16

_MEMORY = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
_PIDS = (("pids.max", "pids.current"),)
"""Files of a control group: a limit, and what is used of it, as each version names them."""


class Bound(NamedTuple):
    """An upper bound on the number of ranks, and its reason."""

    num: int
    why: str


def bound(*, force: bool = False) -> Bound:
    """Return the upper bound on further ranks of this machine."""
    found = list(_hard())
    if not force:
        found += _soft()
    return Bound(*min(found))


def check_room(num: int, *, force: bool = False, how: str = "") -> None:
    """Raise if this machine has no room for a number of further ranks.

    Args:
        how: by which more can be had, if it can.

    Raises:
        ValueError: saying how many can, and why.
    """
    if num <= TRIED_RANKS:
        return
    limit = bound(force=force)
    if num <= limit.num:
        return
    most = bound(force=True).num
    more = f"; {how} allows {most:,}" if how and not force and limit.num < most else ""
    raise ValueError(
        f"{num:,} processes are too many for this machine: it has room for {limit.num:,} more "
        f"({limit.why}){more}"
    )


def _soft() -> Iterator[tuple[int, str]]:
    free = _free_memory()
    yield (
        free // RANK_BYTES,
        f"{size_text(free)} of memory are free, and each takes {size_text(RANK_BYTES)} at least",
    )
    cores = granted_cores()
    yield max(FEW_RANKS, RANKS_PER_CORE * cores), f"{cores} cores"


def _hard() -> Iterator[tuple[int, str]]:
    yield MOST_RANKS, "a host has no more"
    free = _free_memory()
    yield free // LEAST_RANK_BYTES, f"{size_text(free)} of memory are free"
    threads = _free_threads()
    yield threads // THREADS_PER_RANK, f"the system lets {threads:,} more threads be started"
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield files // FILES_PER_RANK, f"a process may have {files:,} files open: ulimit -Hn"


def _free_memory() -> int:
    """Return the free memory: of the machine, or of the cgroup, if that's less."""
    with open("/proc/meminfo") as file:
        known = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}
    free = known.get("MemAvailable", known.get("MemFree", 0)) + known.get("SwapFree", 0)
    return min([free, *_left("memory", _MEMORY)])


def _free_threads() -> int:
    most = min(_number("/proc/sys/kernel/pid_max"), _number("/proc/sys/kernel/threads-max"))
    with open("/proc/loadavg") as file:
        running = int(file.read().split()[3].split("/")[1])
    return min([max(0, most - running), *_left("pids", _PIDS)])


def _left(controller: str, files: tuple[tuple[str, str], ...]) -> Iterator[int]:
    """Yield the remainder under each limit of this process' control group, and of enclosing ones."""
    for group in own_groups(controller):
        for limit, used in files:
            with suppress(OSError, ValueError):  # the file is missing, or contains no number ("max")
                yield max(0, _number(group / limit) - _number(group / used))


def _number(path: str | Path) -> int:
    with open(path) as file:
        return int(file.read())
