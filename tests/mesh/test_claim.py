"""One name, once: whoever starts a name at the same time gets one mesh, and a starter that dies leaves
nothing behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_meshes import own_mesh
from processes import mesh_processes, wait_for_exit
from waiting import wait_until

from monarch_nb import mesh as meshes
from monarch_nb._client import launch
from monarch_nb._protocol.claims import ClaimNote
from monarch_nb._protocol.programs import ShutDown
from monarch_nb._protocol.states import ClaimState
from monarch_nb._wire.claim import Claim
from monarch_nb.exceptions import MeshNotFound, NameTaken

T = 60
PATIENCE_S = 60.0


def ipython(code: str) -> subprocess.Popen[str]:
    """Run lines as somebody types them."""
    return subprocess.Popen(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", code],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "MONARCH_NB_PREWARM": "0"},
    )  # fmt: skip


def start(name: str) -> subprocess.Popen[str]:
    return ipython(f"%load_ext monarch_nb\n%mesh start {name} --procs 1")


def stop(name: str) -> None:
    meshes.attach(name, listens=False).stop().get(T)


def controllers() -> set[int]:
    return {pid for pid, name in mesh_processes().items() if name == "mnb-host"}


def written_claim(name: str) -> ClaimNote | None:
    """Return the note of who has claimed a name; None if it hasn't written who it is yet, either."""
    found = launch.find_claim(name)
    return found if found is not None and found.pid else None


def test_five_programs_start_one_name_at_the_same_time() -> None:
    before = controllers()
    programs = [start("onlyone") for _ in range(5)]
    texts = [program.communicate(timeout=100)[0] for program in programs]
    try:
        assert sum("is ready" in text for text in texts) == 1, texts
        assert (
            sum("attached to mesh 'onlyone' (procs=1: rank 0), which was running" in text for text in texts)
            == 4
        ), texts
        connection = launch.find_connection("onlyone")
        assert launch.find_claim("onlyone").pid == connection.pid  # type: ignore[union-attr]
        wait_until(
            lambda: controllers() - before == {connection.pid}, "the others' controllers end with them"
        )
    finally:
        stop("onlyone")
    assert launch.find_claim("onlyone") is None
    assert not os.path.exists(launch.claim_path("onlyone"))


def test_a_starter_that_is_killed_in_the_middle_leaves_the_name_free() -> None:
    before = controllers()
    program = start("halfway")
    claim = wait_until(lambda: written_claim("halfway"), "the name is claimed")
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert claim.state == ClaimState.STARTING
    assert "pid" in claim.who
    assert wait_for_exit(claim.pid), "a controller that nobody can find is left"
    assert launch.find_claim("halfway") is None
    wait_until(lambda: controllers() == before, "no controller is left")
    assert "halfway" not in [c.name for c in launch.list_all_connections()]
    with own_mesh("halfway", {"procs": 1}) as mesh:
        assert mesh.execute(lambda: 7).get(T).item() == 7


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Iterator[Claim]:
    """A name that this program has, as a controller has it that is being started."""
    note = ClaimNote(ClaimState.STARTING, os.getpid(), "somebody (pid 5)")
    claim = Claim.acquire(launch.claim_path("held"), note.as_json())
    assert claim is not None
    yield claim
    claim.release()


def test_who_comes_second_waits_and_starts_it_if_the_first_gives_up(held: Claim) -> None:
    before = controllers()
    program = start("held")
    assert program.stdout is not None
    assert program.stdout.readline() == "mesh 'held' is being started by somebody (pid 5); waiting for that\n"
    assert controllers() == before, "it has started a controller for nothing"
    held.release()
    text, _ = program.communicate(timeout=100)
    assert "mesh 'held' (procs=1: rank 0) is ready" in text
    stop("held")


def test_a_python_program_is_told_who_has_the_name(held: Claim) -> None:
    before = controllers()
    with pytest.raises(
        NameTaken,
        match=r"^mesh 'held' is being started by somebody \(pid 5\)\. Attach to it when it runs: %mesh "
        r"start held; or choose another name$",
    ):
        meshes.start("held", {"procs": 1})
    with pytest.raises(
        MeshNotFound,
        match=r"mesh 'held' is being started by somebody \(pid 5\)\. Attach to it once it runs: %mesh start "
        r"held",
    ):
        meshes.attach("held")
    assert controllers() == before


@pytest.mark.parametrize("state", [ClaimState.ENDING, ClaimState.RUNNING])
def test_one_that_is_about_to_end_is_waited_for(held: Claim, state: ClaimState) -> None:
    """Also one that was killed, while what it had forked holds its name."""
    killed = subprocess.Popen(["true"])
    killed.wait()
    held.write(ClaimNote(state, os.getpid() if state == ClaimState.ENDING else killed.pid).as_json())
    code = (
        "import monarch_nb\nprint('begins', flush=True)\nmesh = monarch_nb.start('held', {'procs': 1})\n"
        "print(mesh)\nmesh.stop().get(60)"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "begins\n"
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(1.0)
    held.release()
    assert program.communicate(timeout=T)[0] == "<Mesh 'held': procs=1>\n"
    assert program.returncode == 0


def test_the_name_is_taken_until_the_ranks_have_gone() -> None:
    with own_mesh("slow", {"procs": 1}) as mesh:
        controller = mesh.status().pid
        mesh.execute(_leave_slowly).get(T)
        mesh._session.ask(ShutDown())
        claim = wait_until(
            lambda: (launch.find_claim("slow") or ClaimNote()).state == ClaimState.ENDING, "it's about to end"
        )
        assert claim and "slow" not in [c.name for c in launch.list_all_connections()]
        assert wait_for_exit(controller)
        assert launch.find_claim("slow") is None


def _leave_slowly() -> None:
    import signal

    signal.signal(signal.SIGTERM, lambda _number, _frame: time.sleep(600))


def test_files_that_somebody_removes_are_written_anew() -> None:
    with own_mesh("swept", {"procs": 1}, idle_timeout_s=2.0) as mesh:
        path = launch.connection_path("swept")
        before = json.loads(Path(path).read_text())
        os.unlink(path)
        os.unlink(launch.claim_path("swept"))
        wait_until(lambda: os.path.exists(path), "the connection file is written anew")
        assert json.loads(Path(path).read_text()) == before
        claim = launch.find_claim("swept")
        assert claim is not None
        assert claim == ClaimNote(ClaimState.RUNNING, before["pid"], claim.who)
        assert re.match(r".+ \(pid \d+\)$", claim.who)
        assert mesh.status().pid == before["pid"]
