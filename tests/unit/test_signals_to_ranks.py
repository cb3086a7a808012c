"""Signals to ranks whose pid their host process doesn't know yet: a rank may be up, and have run a cell,
before the zygote's answer is read.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb._host.agent import supervisor as supervisors
from monarch_nb._host.agent.supervisor import Rank, Supervisor
from monarch_nb._host.loop import Loop
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.states import ProcState

PROGRAM = """
import os, signal
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted\\n"))
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"cleans up\\n"))
os.write(1, b"up\\n")
os.read(0, 1)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that stands for a rank that is up; it says what it gets."""
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave this process' other children alone."""
    monkeypatch.setattr(supervisors, "reap_strangers", lambda _known: None)


def made(directory: Path) -> tuple[Supervisor, list[RankExit]]:
    """Return a supervisor whose loop stops at the end of a rank, and the ends."""
    loop, ends = Loop(), list[RankExit]()

    def ended(end: RankExit) -> None:
        ends.append(end)
        loop.stop()

    loop.call_later(60, loop.stop)
    return Supervisor(loop, 0, "here", ended, lambda rank, piece: None, [], str(directory)), ends


def test_they_come_when_it_is_known(child: subprocess.Popen[str], tmp_path: Path) -> None:
    """`%mesh restart` just after `%mesh resize` had no effect, and waited for a minute."""
    supervisor, ends = made(tmp_path)
    rank = supervisor.ranks[1] = Rank(1, 0, "group", "token", state=ProcState.RUNNING)
    supervisor.signal([1], signal.SIGINT)
    supervisor._started(rank, child.pid)
    assert child.stdout is not None and child.stdout.readline() == "interrupted\n"
    supervisor.signal([1], signal.SIGKILL)
    supervisor._loop.run()
    assert [(end.proc, end.pid, end.signal) for end in ends] == [(1, child.pid, signal.SIGKILL)]
    supervisor.signal([1], signal.SIGKILL)
    assert rank.unsent == [], "it has ended"


def test_a_rank_that_is_stopped_before_may_clean_up(child: subprocess.Popen[str], tmp_path: Path) -> None:
    """It may be up, with actors that have something to give back."""
    supervisor, ends = made(tmp_path)
    rank = supervisor.ranks[1] = Rank(1, 0, "group", "token", state=ProcState.RUNNING)
    supervisor.stop([1], grace_s=50)
    supervisor._started(rank, child.pid)
    assert child.stdout is not None and child.stdout.readline() == "cleans up\n"
    child.communicate("\n")
    supervisor._loop.run()
    assert [(end.stopped, end.signal) for end in ends] == [(True, None)]
