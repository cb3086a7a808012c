"""Meshes on the nodes of a real torchrun, and of programs that have its variables only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import TAG, wait_for_exit
from waiting import wait_until

from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb.job.allocation import read_record
from monarch_nb.job.torchrun import Meeting, missing
from monarch_nb.mesh import Mesh, attach
from monarch_nb.mesh.torchrun import main

pytest.importorskip("torch")
T = 60
MODULE = "monarch_nb.mesh.torchrun"
TORCHRUN = Path(sys.executable).with_name("torchrun")
Process = subprocess.Popen[str]


@pytest.fixture(autouse=True)
def same_session() -> Iterator[None]:
    current = sessions._current
    yield
    sessions._current = current


def _run(argv: list[str], **variables: str) -> Process:
    environment = {**os.environ, TAG[0]: TAG[1], "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        argv,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def torchrun() -> Iterator[Process]:
    """A launch of one node with two processes."""
    where = ("--nnodes=1", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={_free_port()}")
    process = _run([str(TORCHRUN), *where, "-m", MODULE, "trained"])
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=T)


def _attached(process: Process, name: str) -> Mesh:
    def is_up() -> bool:
        assert process.poll() is None, process.communicate()[1]
        record = read_record(name)
        return record is not None and record.is_up

    wait_until(is_up, f"a mesh {name}")
    return attach(name)


def test_a_launch_is_a_mesh_until_that_is_stopped(torchrun: Process) -> None:
    mesh = _attached(torchrun, "trained")
    assert mesh.sizes == {"hosts": 1, "procs": 2}

    def launchers_variables() -> list[str]:
        import os  # ranks of a launch find modules where the launch does

        return [k for k in os.environ if k.startswith("TORCHELASTIC") or k in ("MASTER_PORT", "GROUP_RANK")]

    assert set(map(tuple, mesh.execute(launchers_variables).get(T).values())) == {()}, "ranks are no workers"
    mesh.stop().get(T)
    out, err = torchrun.communicate(timeout=T)
    assert torchrun.returncode == 0, err
    assert "mesh trained: 1 hosts x 2 procs" in out and "%mesh start trained" in out


def test_a_launch_that_is_told_to_end_takes_its_mesh_along(torchrun: Process) -> None:
    mesh = _attached(torchrun, "trained")
    pids = [host.pid for host in mesh.status().hosts if host.index]
    torchrun.terminate()
    torchrun.communicate(timeout=T)
    assert all(wait_for_exit(pid) for pid in pids)
    wait_until(lambda: not launch.list_connections(), "no mesh any more")


def test_two_nodes_of_any_launcher(tmp_path: Path) -> None:
    """As srun does it: no torchrun, a store of rank 0's own."""
    port = str(_free_port())
    nodes = [
        _run(
            [sys.executable, "-m", MODULE, "spread"],
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GROUP_RANK=str(rank),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        mesh = _attached(nodes[0], "spread")
        assert mesh.sizes == {"hosts": 2, "procs": 1} and len(mesh.execute(os.getpid).get(T)) == 2
        mesh.stop().get(T)
        for node in nodes:
            _, err = node.communicate(timeout=T)
            assert node.returncode == 0, err
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def test_whoever_has_no_key_of_the_launch_gets_no_invitation(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch_nb._wire.invitation import Invitation
    from monarch_nb._wire.keys import KeyPair
    from monarch_nb.exceptions import MeshStartError

    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    meeting = Meeting(launched)
    mine, guest = KeyPair.new(), KeyPair.new()
    given = Invitation("m", 1, ("tcp://127.0.0.1:1",), mine.public, guest.public, guest.secret, 1)
    meeting.hand_out(given)
    assert meeting.fetch() == given
    assert guest.secret not in meeting.hear("listener"), "the store is open to all"
    monkeypatch.setattr("monarch_nb.job.torchrun._TRY_MS", 200)
    meeting.keys = KeyPair.new()
    with pytest.raises(MeshStartError, match=r"cannot reach rank 0 at tcp://127\.0\.0\.1:\d+"):
        meeting.fetch()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, r"by torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set\. Type: torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "two", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "'two' is no number"),
    ],
)  # fmt: skip
def test_without_a_launcher_it_says_what_to_type(
    variables: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import re

    assert re.search(message, missing(variables))
    for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(key, raising=False)
        if key in variables:
            monkeypatch.setenv(key, variables[key])
    assert main(["gone"]) == 1 and re.search(message, capsys.readouterr().err)
