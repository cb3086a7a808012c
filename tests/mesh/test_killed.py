"""Killed client, host process, zygote, rank: nothing is left behind. Each in a program of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import mesh_processes, wait_for_exit

from monarch_nb._wire.directory import socket_root

PRELOAD = "none"
PROGRAM = """
import json, os, subprocess, sys
from monarch_nb.actor import this_host
from monarch_nb._client import session
from monarch_nb._protocol.programs import Status
from monarch_nb.job import ProcessJob

def start_children():
    import subprocess
    child = subprocess.Popen(["sleep", "600"])
    return os.getpid(), child.pid

hosts = ProcessJob({"hosts": 2}).state().hosts if sys.argv[1] == "two" else this_host()
procs = hosts.spawn_procs({"gpus": 2})
ranks = list(procs.execute(start_children).get(60).values())
registry = session.current().request(Status())
print(json.dumps({
    "ranks": [r for r, _ in ranks], "children": [c for _, c in ranks], "controller": registry.pid,
    "zygote": registry.zygote_pid, "hosts": [h.pid for h in registry.hosts],
    "directory": os.path.dirname(session.current().transport.directory),
}), flush=True)
for line in sys.stdin:
    try:
        print(json.dumps(eval(line)), flush=True)
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
"""


class Program:
    """A client in a process of its own, driven line by line."""

    def __init__(self, kind: str, folder: Path) -> None:
        path = folder / "program.py"
        path.write_text(textwrap.dedent(PROGRAM))
        self.process = subprocess.Popen(
            [sys.executable, str(path), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, expression: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def all_pids(self) -> set[int]:
        return {*self.about["ranks"], *self.about["children"], *self.about["hosts"], self.about["zygote"]}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(params=["one", "two"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    started = Program(request.param, tmp_path)
    yield started
    started.close()
    for pid in started.all_pids():
        assert wait_for_exit(pid), f"process {pid} is left"
    assert not os.path.exists(started.about["directory"]) or started.about["controller"] in KILLED


KILLED: set[int] = set()


def test_processes_are_there(program: Program) -> None:
    names = mesh_processes()
    assert program.about["zygote"] in names
    assert all(pid in names for pid in program.about["ranks"])
    assert all(os.path.exists(f"/proc/{pid}") for pid in program.about["children"])
    assert os.stat(program.about["directory"]).st_mode & 0o077 == 0
    assert program.about["directory"].startswith(socket_root())


def test_each_gpu_rank_sees_its_own_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")  # as a scheduler would
    program = Program("one", tmp_path)
    variable = "[*procs.execute(os.getenv, 'CUDA_VISIBLE_DEVICES').get(30).values()]"
    assert program.ask(variable) == ["4", "7"]
    program.close()


def test_killed_client(program: Program) -> None:
    program.process.kill()
    for pid in program.all_pids():
        assert wait_for_exit(pid), f"process {pid} outlived its client"


def test_client_that_ends(program: Program) -> None:
    assert program.process.stdin is not None
    program.process.stdin.close()
    assert program.process.wait(30) == 0
    for pid in program.all_pids():
        assert wait_for_exit(pid), f"process {pid} outlived its client"


def test_killed_controller(program: Program) -> None:
    KILLED.add(program.about["controller"])
    os.kill(program.about["controller"], signal.SIGKILL)
    for pid in program.all_pids():
        assert wait_for_exit(pid), f"process {pid} outlived its host process"


def test_killed_zygote_does_not_touch_ranks(program: Program) -> None:
    os.kill(program.about["zygote"], signal.SIGKILL)
    assert wait_for_exit(program.about["zygote"])
    assert program.ask("list(procs.execute(os.getpid).get(30).values())") == program.about["ranks"]
    # A new zygote is started when it's needed.
    assert program.ask("list(hosts.spawn_procs({'gpus': 1}).execute(lambda: 7).get(60).values())")[0] == 7


@pytest.mark.parametrize(
    "program", ["one"], indirect=True
)  # on two hosts, the controller's zygote has no ranks
def test_a_zygote_that_dies_before_it_has_forked_is_said_in_a_sentence(program: Program) -> None:
    os.kill(program.about["zygote"], signal.SIGSTOP)
    assert program.ask("globals().__setitem__('made', hosts.spawn_procs({'gpus': 1}))") is None
    program.ask("session.current().request(Status()).pid")  # the controller has asked the zygote by now
    os.kill(program.about["zygote"], signal.SIGKILL)
    error = program.ask("made.initialized.get(60)")
    assert "the process was never started: the zygote, which forks ranks, had died (on " in error


def test_killed_rank_takes_its_children_along(program: Program) -> None:
    os.kill(program.about["ranks"][1], signal.SIGKILL)
    assert wait_for_exit(program.about["children"][1])
    answer = program.ask("procs.execute(os.getpid).get(30)")
    assert "SupervisionError" in answer
    assert "killed by SIGKILL" in answer
    assert os.path.exists(f"/proc/{program.about['children'][0]}")
