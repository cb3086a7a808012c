"""Limits of each rank: where this machine's kernel and rights allow none, one sentence says so. The ones that
hold are tested in a virtual machine: `tests/rxe/mesh_program.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_nb import mesh as meshes
from monarch_nb._client import launch
from monarch_nb._wire import control_group
from monarch_nb._wire.limits import VARIABLE, Limits
from monarch_nb.exceptions import MeshUsageError


def made(folder: Path, controllers: str = "cpu memory", enabled: str = "") -> Path:
    """Make a directory with the files of a control group."""
    folder.mkdir()
    for name, text in (
        ("cgroup.procs", ""), ("cgroup.controllers", controllers), ("cgroup.subtree_control", enabled)
    ):  # fmt: skip
        (folder / name).write_text(text)
    return folder


def test_a_group_has_the_limits_and_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files in place of the kernel's: what is written, and where."""
    outer = made(tmp_path / "outer", enabled="cpu memory")
    (inner := made(outer / "inner")).joinpath("cgroup.procs").chmod(0)
    monkeypatch.setattr(os, "access", lambda path, _how: inner not in Path(path, "x").parents)
    monkeypatch.setattr(control_group, "own_unified_groups", lambda: iter((inner, outer)))
    control_group.enter_group(Limits(1 << 30, 1.5), name := control_group.group_name(os.getpid(), 3))
    group = control_group.find_group(name)
    assert group == outer / name, "below the nearest group that may be written to"
    found = {path.name: path.read_text() for path in group.iterdir()}
    assert found == {
        "memory.max": str(1 << 30), "cpu.max": "150000 100000", "memory.oom.group": "1",
        "memory.swap.max": "0", "cgroup.procs": "0",
    }  # fmt: skip
    assert not control_group.was_out_of_memory(group)
    (group / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert control_group.was_out_of_memory(group)


def test_where_no_groups_can_be_made_a_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(control_group, "own_unified_groups", lambda: iter((tmp_path,)))
    with pytest.raises(
        MeshUsageError, match=r"can't be limited to 1 GiB of memory: .*systemd-run --user --scope"
    ):
        meshes.start("limited", {"procs": 1}, env={VARIABLE: "memory=1G"})
    assert "limited" not in [each.name for each in launch.list_connections()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory=1X", "memory=1X: expected a size of 64 MiB or more, as in memory=8G"),
        ("memory=1M", "expected a size of 64 MiB or more"),
        ("cpus=0", "cpus=0: expected a number of processors, as in cpus=2 or cpus=0.5"),
        ("gpus=1", "expected memory=SIZE, cpus=NUMBER or both, as in memory=8G,cpus=2; not 'gpus=1'"),
        ("memory=1G,memory=2G", "expected memory=SIZE, cpus=NUMBER or both"),
    ],
)
def test_what_is_no_limit_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        meshes.start("limited", {"procs": 1}, env={VARIABLE: text})
