"""Control groups of ranks that have limits: a rank enters a new one before it runs code of the user's, and
its host process removes it when the rank has ended.

Linux' admin-guide/cgroup-v2: a group that passes controllers on must have no processes of its own, except the
outermost one, so the groups are made beside the one that the mesh was started in, below the nearest one that
this user may write to: a desktop's session, or what has been delegated.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from monarch_nb._wire.granted import own_unified_groups
from monarch_nb._wire.limits import Limits

_PERIOD_US = 100_000


class LimitError(Exception):
    """The error of limits that can't be had on this machine."""


def group_name(host_pid: int, proc: int) -> str:
    """Return the name of a rank's group."""
    return f"mnb-{host_pid}-{proc}"


def enter_group(limits: Limits, name: str) -> None:
    """Put this process, and what it will start, into a new control group that has these limits.

    Raises:
        LimitError: saying what this machine lacks.
    """
    parent = _parent(limits)
    _remove_left(parent)
    group = parent / name
    try:
        group.mkdir(exist_ok=True)
        for file, value in _settings(limits).items():
            (group / file).write_text(value)
        for file in ("memory.oom.group", "memory.swap.max"):  # all of a rank is killed; disk is no memory
            if limits.memory_bytes is not None:
                with suppress(OSError):
                    (group / file).write_text("1" if file == "memory.oom.group" else "0")
        (group / "cgroup.procs").write_text("0")  # this process
    except OSError as error:
        raise LimitError(
            f"can't be limited to {limits}: {error.filename}: {(error.strerror or str(error)).lower()}"
        ) from None


def check_limits(limits: Limits) -> None:
    """Raise if a process that's started here couldn't have these limits.

    Raises:
        LimitError: saying what this machine lacks.
    """
    _parent(limits)


def find_group(name: str) -> Path | None:
    """Return the group of that name which was made from where this process is."""
    return next((each / name for each in own_unified_groups() if (each / name).is_dir()), None)


def was_out_of_memory(group: Path) -> bool:
    """Return whether the kernel has killed processes of a group because that used all it may."""
    with suppress(OSError):
        lines = (group / "memory.events").read_text().splitlines()
        return any(line.startswith("oom_kill ") and int(line.split()[1]) for line in lines)
    return False


def remove_group(group: Path) -> bool:
    """Kill what runs in a group, and remove it; return whether it's gone: processes may take a moment to
    end.
    """
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _parent(limits: Limits) -> Path:
    controllers = {
        name for name, limit in (("memory", limits.memory_bytes), ("cpu", limits.cpus)) if limit is not None
    }
    for group in own_unified_groups():
        if _passes_on(group, controllers):
            return group
    raise LimitError(
        f"can't be limited to {limits}: this user may make no control groups (version 2, with "
        f"{' and '.join(sorted(controllers))}) here. Start JupyterLab, or what starts the mesh, in a session "
        "that may: systemd-run --user --scope -p Delegate=yes jupyter lab. Slurm and Kubernetes limit a "
        "job's hosts themselves"
    )


def _passes_on(group: Path, controllers: set[str]) -> bool:
    """Return whether groups below this one can be made, entered, and have these controllers."""
    if not all(os.access(path, os.W_OK) for path in (group, group / "cgroup.procs")):
        return False
    with suppress(OSError):
        enabled = group / "cgroup.subtree_control"
        missing = controllers - set(enabled.read_text().split())
        if missing:
            enabled.write_text(" ".join(f"+{name}" for name in sorted(missing)))
        return True
    return False


def _settings(limits: Limits) -> dict[str, str]:
    found = {}
    if limits.memory_bytes is not None:
        found["memory.max"] = str(limits.memory_bytes)
    if limits.cpus is not None:
        found["cpu.max"] = f"{round(limits.cpus * _PERIOD_US)} {_PERIOD_US}"
    return found


def _remove_left(parent: Path) -> None:
    """Remove groups of host processes that were killed before they could."""
    for group in parent.glob("mnb-*-*"):
        pid = group.name.split("-")[1]
        if not os.path.exists(f"/proc/{pid}"):
            remove_group(group)
