"""What a Monarch program does with breakpoint() in an endpoint, where there's no notebook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from debugged_actors import Debugged, DebuggedAsync
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb._protocol.debugging import DebugStops
from monarch_nb._protocol.hang import Stacks
from monarch_nb._stacks import innermost
from monarch_nb.actor import ProcMesh, this_host
from monarch_nb.actor.handle import placement_of

T = 60


@pytest.fixture(scope="module")
def pair() -> Iterator[ProcMesh]:
    procs = this_host().spawn_procs({"gpus": 2})
    yield procs
    procs.stop().get(T)


def stopped(procs: ProcMesh, num: int) -> None:
    """Wait until that many ranks stand at a breakpoint."""
    wait_until(
        lambda: len(sessions.current().request(DebugStops(placement_of(procs).group))) == num,
        f"{num} ranks at a breakpoint",
        T,
    )


def test_a_script_says_where_it_stands_and_is_debugged_from_a_terminal(
    pair: ProcMesh, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = pair.spawn("debugged", Debugged).add.call(3)
    text = ""

    def says_how() -> bool:
        nonlocal text
        text += capfd.readouterr().err
        return f"debug with: monarch-nb debug {os.getpid()} " in text

    wait_until(says_how, "a word about the breakpoint", T)
    assert "at a breakpoint: " in text and "debugged_actors.py, line" in text and "(Debugged.add)" in text
    stopped(pair, 2)
    done = subprocess.run(
        [sys.executable, "-m", "monarch_nb", "debug", str(os.getpid())],
        input="p doubled\nc\n",
        capture_output=True,
        text=True,
        timeout=T,
    )
    assert "[0] 6\n[1] 7" in done.stdout, done.stdout + done.stderr
    assert list(answer.get(T).values()) == [6, 7]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_ctrl_c_at_a_breakpoint_ends_it(pair: ProcMesh, kind: str) -> None:
    if kind == "sync":
        answer: Any = pair.spawn("debugged", Debugged).add.call(3)
    else:
        answer = pair.spawn("debugged", DebuggedAsync).wait.call(3)
    stopped(pair, 2)
    stacks = sessions.current().request(Stacks([placement_of(pair).procs[0]]))
    assert "debugged_actors.py, line" in innermost(stacks[0]), "it stands somewhere, and isn't idle"

    def press() -> None:
        reader, pending = answer._pending.transport.reader, answer._pending
        wait_until(
            lambda: reader._leader is pending or pending in reader._followers, "a wait for the answer", T
        )
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt, match=r"ranks 0-1 of debugged\.\w+ were interrupted"):
        answer.get(T)
    presser.join()
    stopped(pair, 0)
