"""Children of this program: how each has ended is known, however late somebody asks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from monarch_nb._client import children
from monarch_nb._client.connection_file import Connection
from monarch_nb._client.ending import Ending


def test_how_a_child_ended_is_known_after_its_zombie_has_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(children, "LINGER_S", 0.0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    children.look_after(process)
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: process.returncode is not None, "the child is waited for")
    ending = Ending(Connection(name="late", directory=str(tmp_path), pid=process.pid))
    assert "was killed by SIGKILL" in ending.describe()
    assert process.stdin is not None
    process.stdin.close()


def test_nobody_knows_how_a_stranger_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert children.status_of(process.pid) is None
