"""Forks that the host process adopts: how many there are, and what stands in their way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

PROGRAM = """
import ctypes, json, os, select, signal, sys, time
from monarch_nb._rank import forking
from monarch_nb._wire.process import wait_until_gone

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
parent = os.getpid()
read_end, write_end = os.pipe()

def say(**what):
    os.write(write_end, (json.dumps(what) + "\\n").encode())

def run(number):
    adopted = forking.wait_for_adoption(parent)
    say(number=number, pid=os.getpid(), parent=os.getppid(), adopted=adopted)
    if number == 1:
        raise ValueError("one of them")

def zygote():
    real = os.fork
    forks = [0]
    def fork():
        forks[0] += 1
        if "fail" in sys.argv and forks[0] == 4:
            raise BlockingIOError(11, "no more")
        if "raise" in sys.argv and forks[0] == 4:
            raise MemoryError("no room")
        if "kill" in sys.argv and forks[0] == 4:
            os.kill(zygote_pid, signal.SIGKILL)
            signal.pause()
        return real()
    os.fork = fork
    zygote_pid = os.getpid()
    forks_made = forking.fork_many(3 if "all" in sys.argv else 5, run)
    say(pids=forks_made.pids, failure=forks_made.failure)
    for pid in forks_made.pids:  # one that finds this process ended would not run
        wait_until_gone(pid, 60)
    os._exit(0)

zygote_pid = os.fork()
if zygote_pid == 0:
    zygote()
os.close(write_end)
ends = {}
while True:
    try:
        pid, status = os.wait()
    except ChildProcessError:
        break
    ends[pid] = os.waitstatus_to_exitcode(status)
lines = [json.loads(line) for line in open(read_end)]
print(json.dumps({"parent": parent, "zygote": zygote_pid, "ends": ends, "lines": lines}))
"""


def run(how: str) -> tuple[dict[str, Any], str]:
    """Return what the program found, and what its processes wrote to stderr."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=100)
    return json.loads(done.stdout), done.stderr


def test_all_are_adopted_when_their_pids_are_told() -> None:
    found, errors = run("all")
    forks = sorted((line for line in found["lines"] if "number" in line), key=lambda line: line["number"])
    (told,) = [line for line in found["lines"] if "pids" in line]
    assert told == {"pids": [fork["pid"] for fork in forks], "failure": ""}
    assert all(fork["parent"] == found["parent"] and fork["adopted"] for fork in forks)
    assert [found["ends"][str(fork["pid"])] for fork in forks] == [0, 1, 0]
    assert "ValueError: one of them" in errors


def test_what_cannot_be_forked_is_missing_and_the_reason_is_told() -> None:
    found, _ = run("fail")
    forks = [line for line in found["lines"] if "number" in line]
    (told,) = [line for line in found["lines"] if "pids" in line]
    assert sorted(told["pids"]) == sorted(fork["pid"] for fork in forks) and len(forks) == 2
    assert told["failure"] == os.strerror(11)


def test_an_error_of_the_child_that_forks_ends_it() -> None:
    found, errors = run("raise")
    (told,) = [line for line in found["lines"] if "pids" in line]  # the zygote alone goes on
    assert len(told["pids"]) == 2
    assert "the process that forks failed" in told["failure"]
    assert "MemoryError: no room" in errors


def test_nobody_runs_whom_a_killed_caller_has_told_nobody_of() -> None:
    found, _ = run("kill")
    assert found["ends"][str(found["zygote"])] == -9
    assert all(not line["adopted"] for line in found["lines"] if "number" in line), found
    assert len(found["ends"]) == 4, found  # the caller, its child that forks, and two forks


def test_a_process_that_was_not_forked_in_this_way_runs_at_once() -> None:
    from monarch_nb._rank import forking

    assert forking.wait_for_adoption(os.getppid())
