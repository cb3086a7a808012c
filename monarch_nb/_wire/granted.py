"""Determines the share of its machine that this process was granted: cores, and the limits of its control
groups.

A container, a Slurm step and a systemd unit often have fewer cores than the machine: by affinity, which the
kernel applies to each thread, or by a quota of time in a control group, which nothing but its files tells.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class _Mount(NamedTuple):
    """A mounted hierarchy of control groups.

    Attributes:
        root: the group that the mount point shows: `/`, or a container's.
        options: of a version 1 hierarchy, with the controllers.
    """

    root: str
    point: Path
    is_unified: bool
    options: frozenset[str]


def granted_cores(proc: Path = Path("/proc/self")) -> int:
    """Return how many cores this process may keep busy: at least 1.

    The least of its affinity and of the quotas of its control group and all that enclose it (`cpu.max` of
    version 2, `cpu.cfs_quota_us` of version 1: Linux' admin-guide/cgroup-v2, scheduler/sched-bwc). A quota of
    2.5 cores counts as 3: a core that is partly ours is worth a thread.

    Example:
        >>> granted_cores() <= len(os.sched_getaffinity(0))
        True
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(proc)]))


def own_groups(controller: str, proc: Path = Path("/proc/self")) -> Iterator[Path]:
    """Yield the directories of the control group that this process is in and of those that enclose it,
    innermost first: of a version 1 controller such as "memory", then those of version 2.

    Errors in reading mean that there are none.
    """
    with suppress(OSError, ValueError, IndexError):
        mounts = list(_mounts(proc))
        for line in (proc / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for mount in mounts:
                if mount.is_unified == (not controllers) and _serves(mount, controllers, controller):
                    yield from _upwards(mount, path)


def own_unified_groups(proc: Path = Path("/proc/self")) -> Iterator[Path]:
    """Yield the directories of the version 2 control group that this process is in and of those that enclose
    it, innermost first.
    """
    with suppress(OSError, ValueError, IndexError):
        mounts = [mount for mount in _mounts(proc) if mount.is_unified]
        for line in (proc / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for mount in mounts if not controllers else ():
                yield from _upwards(mount, path)


def _serves(mount: _Mount, controllers: str, controller: str) -> bool:
    return mount.is_unified or (controller in controllers.split(",") and controller in mount.options)


def _upwards(mount: _Mount, path: str) -> Iterator[Path]:
    root = mount.root.rstrip("/")
    is_shown = f"{path}/".startswith(f"{root}/") and ".." not in path.split("/")
    group = mount.point / path.removeprefix(root).strip("/") if is_shown else mount.point
    for directory in (group, *group.parents):
        if directory.is_dir():
            yield directory
        if directory == mount.point:
            return


def _mounts(proc: Path) -> Iterator[_Mount]:
    """Yield the hierarchies that are mounted (proc(5), mountinfo: the root is field 4, the point field 5)."""
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = before.split(" ")[3:5]
            yield _Mount(root, Path(_unescaped(point)), kind == "cgroup2", frozenset(options.split(",")))


def _unescaped(text: str) -> str:
    return text.encode().decode("unicode_escape").encode("latin-1").decode()  # a space is \040 there


def _quotas(proc: Path) -> Iterator[int]:
    for group in own_groups("cpu", proc):
        with suppress(OSError, ValueError):  # no such file, or no number ("max") in it
            quota, period = _quota(group)
            if quota > 0 and period > 0:
                yield -(-quota // period)


def _quota(group: Path) -> tuple[int, int]:
    """Return the microseconds of cores' time in each period, and the period; -1 is without limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except FileNotFoundError:
        quota, period = (
            (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )  # version 1
    return int(quota), int(period)
