"""Cores and limits as granted: files as containers, Slurm and systemd make them, and a real control group."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from monarch_nb._wire.granted import granted_cores, own_groups
from monarch_nb._wire.process import wait_until_gone

AFFINITY = len(os.sched_getaffinity(0))
ASK = "from monarch_nb._wire.granted import granted_cores; print(granted_cores())"


class Machine:
    """A machine's files: what is mounted where, the groups of a process, and their limits."""

    def __init__(self, root: Path) -> None:
        self.proc, self.groups = root / "proc", root / "sys fs"
        self.proc.mkdir()
        self.mounts: list[str] = []

    def mount(self, point: str, kind: str, options: str = "rw", root: str = "/") -> None:
        (self.groups / point).mkdir(parents=True)
        escaped = str(self.groups / point).replace(" ", r"\040")
        self.mounts.append(
            f"30 1 0:{len(self.mounts)} {root} {escaped} rw shared:9 - {kind} {kind} {options}"
        )
        (self.proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/x rw\n" + "\n".join(self.mounts))

    def join(self, *lines: str) -> None:
        (self.proc / "cgroup").write_text("\n".join(lines) + "\n")

    def limit(self, group: str, **files: str) -> None:
        (self.groups / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.groups / group / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    return Machine(tmp_path)


def test_a_quota_of_an_enclosing_group_holds(machine: Machine) -> None:
    machine.mount("cgroup", "cgroup2")
    machine.join("0::/system.slice/slurmstepd.scope/job_7/step_0")
    machine.limit("cgroup/system.slice/slurmstepd.scope/job_7/step_0", cpu__max="max 100000")
    machine.limit("cgroup/system.slice/slurmstepd.scope/job_7", cpu__max="800000 100000")
    assert granted_cores(machine.proc) == 8
    machine.limit("cgroup/system.slice/slurmstepd.scope/job_7/step_0", cpu__max="250000 100000")
    assert granted_cores(machine.proc) == 3  # 2.5, and a part of a core is worth a thread


def test_a_container_sees_its_own_group_as_the_root(machine: Machine) -> None:
    machine.mount("cgroup", "cgroup2")
    machine.join("0::/")
    machine.limit("cgroup", cpu__max="400000 100000")
    assert granted_cores(machine.proc) == 4


def test_version_1_has_a_hierarchy_for_each_controller(machine: Machine) -> None:
    machine.mount("cpu,cpuacct", "cgroup", "rw,cpu,cpuacct", root="/docker/77")
    machine.mount("memory", "cgroup", "rw,memory", root="/docker/77")
    machine.mount("unified", "cgroup2")
    machine.join("4:memory:/docker/77", "1:cpu,cpuacct:/docker/77/inner", "0::/docker/77")
    machine.limit("cpu,cpuacct/inner", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    machine.limit("cpu,cpuacct", cpu__cfs_quota_us="600000", cpu__cfs_period_us="50000")
    assert granted_cores(machine.proc) == 12
    inner = machine.groups / "cpu,cpuacct"
    assert list(own_groups("cpu", machine.proc)) == [inner / "inner", inner, machine.groups / "unified"]
    assert next(own_groups("memory", machine.proc)) == machine.groups / "memory"


@pytest.mark.parametrize("path", ["/../other", "/elsewhere", "/docker/777"])
def test_a_group_that_the_mount_does_not_show_is_known_by_its_root(machine: Machine, path: str) -> None:
    machine.mount("cgroup", "cgroup2", root="/docker/77")
    machine.join(f"0::{path}")
    machine.limit("cgroup", cpu__max="200000 100000")
    assert granted_cores(machine.proc) == 2


@pytest.mark.parametrize("junk", ["", "no line", "0", "1:2", ":::::", "\0"])
def test_what_cannot_be_read_limits_nothing(machine: Machine, junk: str) -> None:
    assert granted_cores(machine.proc) == 64  # nothing is mounted
    machine.mount("cgroup", "cgroup2")
    machine.join(junk)
    machine.limit("cgroup", cpu__max=junk)
    assert granted_cores(machine.proc) == 64
    (machine.proc / "mountinfo").write_text(junk)
    assert granted_cores(machine.proc) == 64


@pytest.fixture
def group() -> Iterator[Path]:
    """A real control group of half a core."""
    *_, top = own_groups("cpu") if (Path("/sys/fs/cgroup/cpu").is_dir()) else own_groups("")
    directory = Path("/sys/fs/cgroup/cpu" if Path("/sys/fs/cgroup/cpu").is_dir() else top) / uuid.uuid4().hex
    try:
        directory.mkdir()
        if (directory / "cpu.cfs_quota_us").exists():
            (directory / "cpu.cfs_quota_us").write_text("50000")
        else:
            (directory / "cpu.max").write_text("50000 100000")
    except OSError as error:
        with suppress(OSError):
            directory.rmdir()
        pytest.skip(f"no control group with a quota can be made here: {error}")
    yield directory
    for pid in (directory / "cgroup.procs").read_text().split():
        wait_until_gone(int(pid), 45)
    directory.rmdir()


def test_a_real_quota_counts(group: Path) -> None:
    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    found = subprocess.run(
        [sys.executable, "-c", ASK], preexec_fn=enter, capture_output=True, text=True, check=True, timeout=100
    )
    assert found.stdout == "1\n"
    own = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=100)
    assert own.stdout == f"{granted_cores()}\n"
    assert granted_cores() <= AFFINITY
