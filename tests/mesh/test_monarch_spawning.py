"""What a Monarch program says of how its processes are started: proc_bind, bootstrap_command."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import pytest

from monarch_nb.actor import BootstrapCommand, ProcMesh, default_bootstrap_cmd, this_host
from monarch_nb.exceptions import MeshStartError

T = 60
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}.get(os.uname().machine)


def memory_policy() -> tuple[int, int]:
    """Return the mode and the first 64 nodes of the memory policy that the kernel knows of this process."""
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()
    if ctypes.CDLL(None).syscall(GET_MEMPOLICY, ctypes.byref(mode), mask, 1025, None, 0):
        return -1, 0
    return mode.value, mask[0]


def environment() -> dict[str, Any]:
    return {"nice": os.nice(0), "python": sys.executable, **os.environ}


def ended(procs: ProcMesh) -> None:
    procs.stop(grace_s=0.0).get(T)


def test_processes_are_bound_to_cpus_and_memory() -> None:
    last = max(os.sched_getaffinity(0))
    bindings = [{"cpus": str(last)}, {"cpunodebind": "0", "physcpubind": f"0-{last}", "membind": "0"}]
    procs = this_host().spawn_procs({"gpus": 2}, proc_bind=bindings)
    try:
        first, second = procs.execute(os.sched_getaffinity, 0).get(T).values()
        assert first == {last} and second == os.sched_getaffinity(0)
        assert [mode for mode, _ in procs.execute(memory_policy).get(T).values()] == [0, 2]
    finally:
        ended(procs)


@pytest.mark.parametrize(
    ("binding", "says"),
    [
        ([{"cpus": "0"}], "has 1 entry, and each host gets 2 processes"),
        ([{"cpus": "0"}, {"numa": "0"}], "knows no key 'numa'; it knows cpus"),
        ([{"cpus": "0"}, {"cpus": "3-1"}], "cpus: '3-1' is no set of numbers"),
        ([{"cpus": "0"}, {"cpus": 1}], "text such as '0-3,8', not 1"),
        ({"cpus": "0"}, "a mapping for each process"),
    ],
)
def test_a_binding_that_cannot_be_is_refused(binding: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        this_host().spawn_procs({"gpus": 2}, proc_bind=binding)


def test_a_cpu_or_node_that_is_not_there_is_said() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, proc_bind=[{"cpus": "4000"}, {"membind": "77"}])
    with pytest.raises(
        MeshStartError, match=r"(?s)2 of 2 .*may not use CPU 4000, or there is none.*no NUMA node 77"
    ):
        procs.initialized.get(T)


def test_a_command_becomes_the_rank_and_gives_it_its_environment() -> None:
    default = default_bootstrap_cmd()
    command = BootstrapCommand("nice", None, ["-n", "3", default.program, *default.args]).with_env(
        {"FROM": "all", "HOME": None}
    )
    procs = this_host().spawn_procs(
        {"gpus": 2},
        bootstrap_command=lambda point: command.with_env({"OWN": f"gpu {point['gpus']}"}),
        env={"FROM": "env="},
    )
    try:
        found = list(procs.execute(environment).get(T).values())
        assert [each["OWN"] for each in found] == ["gpu 0", "gpu 1"]
        for each in found:
            assert (each["nice"], each["FROM"], each["python"]) == (os.nice(0) + 3, "env=", sys.executable)
            assert (
                "HOME" not in each
                and each.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
                and "MONARCH_NB_RANK" not in each
            )
    finally:
        ended(procs)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (BootstrapCommand("/nowhere/python"), r"was never started: '/nowhere/python': No such file"),
        (
            BootstrapCommand(
                "bash", None, ["-c", f"{sys.executable} -m monarch_nb._rank.bootstrap; exit $?"]
            ),
            "as a child of its own",
        ),
        (BootstrapCommand("false"), "exited with code 1"),
    ],
)
def test_a_command_that_becomes_no_rank_says_why(command: BootstrapCommand, says: str) -> None:
    procs = this_host().spawn_procs(bootstrap_command=command)
    with pytest.raises(MeshStartError, match=says):
        procs.initialized.get(T)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python", "takes a BootstrapCommand .* not 'python'"),
        (lambda _point: "python", r"bootstrap_command of \{'gpus': 0\} is a BootstrapCommand"),
        (BootstrapCommand(""), "program is the path or name of a program, not ''"),
        (BootstrapCommand("python", None, "-m x"), "args is a list of texts"),  # type: ignore[arg-type]
        (BootstrapCommand("python", env={"A": 1}), "got 'A': 1"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_command_is_refused(command: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        this_host().spawn_procs({"gpus": 1}, bootstrap_command=command)
