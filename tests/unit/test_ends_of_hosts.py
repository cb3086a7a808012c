"""A host process ends when its mesh does, whatever goes wrong in its last steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import wait_for_exit

from monarch_nb._client.connection_file import Connection
from monarch_nb._client.session import Session
from monarch_nb.exceptions import MeshEnded

T = 60

FAILING_CONTROLLER = """
import sys
from monarch_nb._host.config import HostConfig
from monarch_nb._host.controller.controller import ControllerProcess

def fail(*_args):
    raise RuntimeError("a mistake")

controller = ControllerProcess(HostConfig(0, sys.argv[1], [], warm=False))
controller.mesh_name.hide = controller.cells.mesh_ends = controller.hosts.tell_all = fail
controller.loop.call_later(0, controller.shut_down)
controller.run()
"""

UNKILLABLE_CHILD = """
import os, subprocess, sys
from monarch_nb._host.agent import supervisor

child = subprocess.Popen(["sleep", "600"])
kill = os.kill

def refuse(pid, number):
    raise PermissionError("it is another user's by now")

os.kill = refuse
supervisor.kill_children(grace_s=0.1)
kill(child.pid, 9)
"""

LEAVING_PROGRAM = """
import os, signal, sys
from monarch_nb._client import session

pid = session.current().connection.pid
os.kill(pid, signal.SIGSTOP)
session.shutdown()
print(pid, flush=True)
sys.stdin.read()
"""


def run(code: str, *arguments: str) -> str:
    """Run a program that is to end by itself; return what it has written to stderr."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=T)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_controller_ends_whatever_its_last_steps_raise(tmp_path: object) -> None:
    log = run(FAILING_CONTROLLER, f"{tmp_path}/h0")
    assert log.count("RuntimeError: a mistake") == 3


def test_a_child_that_cannot_be_killed_keeps_no_host_process_alive() -> None:
    run(UNKILLABLE_CHILD)


def test_a_private_mesh_ends_with_its_session_though_the_controller_was_too_busy_to_answer() -> None:
    command = [sys.executable, "-c", LEAVING_PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        pid = int(program.stdout.readline())
        os.kill(pid, signal.SIGCONT)
        try:
            assert wait_for_exit(pid), "the controller lives on as long as the program does"
            assert program.poll() is None
        finally:
            program.stdin.close()


def test_who_attaches_to_a_mesh_that_has_just_ended_keeps_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with subprocess.Popen(["sleep", "600"]) as controller:
        controller.kill()
        assert wait_for_exit(controller.pid)
        with pytest.raises(MeshEnded):
            Session.connect(Connection(name="late", directory=str(tmp_path), pid=controller.pid))
    assert [t.name for t in set(threading.enumerate()) - before if t.name.startswith("monarch_nb")] == []
