"""Hosts that wait in a directory: real ones on this machine, and docker/compose.yaml where docker runs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from processes import TAG
from sshd import Profiles
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb._host import pool
from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.job.allocation import Plan, list_records
from monarch_nb.job.engines import ENGINES
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import Mesh, on_engine

T = 60
HERE = """
import socket, sys
from monarch_nb._host import pool
sys.exit(pool.wait(sys.argv[1], sys.argv[2]))
"""


class Pool:
    """Two hosts that wait in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o700)
        self.directory = str(directory)
        self.processes = {name: self.start(name) for name in ("a", "b")}
        self.wait_for(["a", "b"])

    def start(self, name: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", HERE, self.directory, name]
        return subprocess.Popen(argv, env={**os.environ, **dict([TAG])}, stdout=subprocess.DEVNULL)

    def wait_for(self, names: list[str]) -> None:
        wait_until(lambda: pool.waiting_hosts(self.directory) == names, f"hosts {names} that wait")

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        assert [p.wait(T) for p in self.processes.values()] == [0] * len(self.processes)
        assert os.listdir(self.directory) == []


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    found = Pool(tmp_path_factory.mktemp("pool"))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def lab(hosts: Pool, profiles: Profiles) -> Iterator[None]:
    profiles(
        f'[two]\nengine = "compose"\nhosts = 2\n[two.compose]\ndirectory = "{hosts.directory}"\n'
        f'[three]\nengine = "compose"\nhosts = 3\n[three.compose]\ndirectory = "{hosts.directory}"\n'
        f'[open]\nengine = "compose"\n[open.compose]\ndirectory = "/tmp"\n'
        f'[other]\nengine = "compose"\nhosts = ["c"]\n[other.compose]\ndirectory = "{hosts.directory}"\n'
    )
    current = sessions._current
    yield
    sessions._current = current
    assert list_records() == []
    hosts.wait_for(["a", "b"])


def start(name: str, profile: str) -> Mesh:
    return on_engine.start_on(name, find_profile(profile, ENGINES), Plan((("procs", 1),)))


def test_hosts_that_wait_are_in_a_mesh_and_wait_again_when_it_has_ended(hosts: Pool) -> None:
    mesh = start("first", "two")
    try:
        assert mesh.sizes == {"hosts": 2, "procs": 1}
        assert sorted(row.name for row in on_engine.host_rows(mesh)[1:]) == ["a", "b"]
        assert pool.waiting_hosts(hosts.directory) == [] and pool.is_here(hosts.directory, "a")
        assert not [n for n in os.listdir(hosts.directory) if n.endswith(".join")], "no secret stays"
    finally:
        mesh.stop().get(T)
        on_engine.give_back("first")
    hosts.wait_for(["a", "b"])


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("three", "3 hosts were asked for, and 2 wait in .*: a, b"),
        ("open", "/tmp isn't yours alone: invitations lie there; chmod 700 /tmp"),
        ("other", "host c doesn't wait in .*; who does: a, b"),
        ("compose", "there is no /run/monarch_nb: `make cluster`"),
    ],
)
def test_what_cannot_be_had_is_said_before_a_host_is_taken(profile: str, message: str) -> None:
    with pytest.raises(MeshUsageError, match=message):
        start("gone", profile)


def test_a_host_that_was_killed_is_none(hosts: Pool) -> None:
    hosts.processes["c"] = hosts.start("c")
    hosts.wait_for(["a", "b", "c"])
    hosts.processes["c"].kill()
    hosts.processes.pop("c").wait(T)
    with pytest.raises(MeshUsageError, match="3 hosts were asked for, and 2 wait"):
        start("gone", "three")


def test_a_bad_invitation_is_answered_and_the_host_waits_on(hosts: Pool) -> None:
    assert pool.claim_host(hosts.directory, "a") and not pool.claim_host(hosts.directory, "a"), (
        "one may have it"
    )
    pool.invite(hosts.directory, "a", "{}")
    wait_until(lambda: pool.refusal_of(hosts.directory, "a") != "", "what the host says")
    assert "invitation" in pool.refusal_of(hosts.directory, "a")
    pool.forget_refusal(hosts.directory, "a")


def test_a_host_that_is_told_to_end_leaves_its_mesh_and_its_launcher_ends(hosts: Pool) -> None:
    mesh = start("left", "two")
    hosts.processes["b"].send_signal(signal.SIGTERM)
    assert hosts.processes["b"].wait(T) == 0
    with pytest.raises(MeshError):
        mesh.execute(os.getpid).get(T)
    on_engine.cancel("left")
    hosts.processes["b"] = hosts.start("b")
    hosts.wait_for(["a", "b"])


# --- docker

ROOT = Path(__file__).parents[2]
PROJECT = "monarch-nb-test"
PROGRAM = """
import os, socket
from monarch_nb.job.allocation import Plan
from monarch_nb.job.engines import ENGINES
from monarch_nb.job.profiles import find_profile
from monarch_nb.job.spec import HostRange
from monarch_nb.mesh import on_engine
from dataclasses import replace
found = find_profile("compose", ENGINES)
found = replace(found, spec=replace(found.spec, hosts=HostRange(3, 3)))
mesh = on_engine.start_on("big", found, Plan((("procs", 1),)))
def who():
    return socket.gethostname(), os.getuid()
print(sorted(mesh.execute(who).get(60).values()))
mesh.stop().get(60)
on_engine.give_back("big")
"""


def why_no_docker() -> str:
    """Return why docker/ can't be run here; empty if it can. Nothing is downloaded for a test. A daemon that
    is being started (`.ci/run`) is waited for.
    """
    if status := os.environ.get("MONARCH_NB_TEST_DOCKER"):
        path = Path(status)
        wait_until(lambda: path.is_file() and path.read_text().strip(), "a docker daemon", 400)
        if path.read_text().strip() != "0":
            return f"start_docker.sh: {path.with_name('started').read_text().strip()}"
    if shutil.which("docker-compose") is None:
        return "no docker-compose: apt-get install docker.io docker-compose"
    if subprocess.run(["docker", "info"], capture_output=True, timeout=T).returncode:
        return "no docker daemon runs here: tests/engines/start_docker.sh"
    there = subprocess.run(["docker", "image", "inspect", "python:3.11-slim"], capture_output=True, timeout=T)
    return "no image python:3.11-slim here: docker pull python:3.11-slim" if there.returncode else ""


@pytest.fixture(scope="module")
def containers() -> Iterator[list[str]]:
    """Bring up what `make cluster SLURM=1` does, under another name and port; in the long form, first what it
    does without a Slurm.
    """
    if why_no_docker():
        pytest.skip(why_no_docker())
    compose = ["docker-compose", "-p", PROJECT, "-f", "docker/compose.yaml"]
    try:
        for more in ([], ["SLURM=1"]) if os.environ.get("MONARCH_NB_HOSTILE") == "full" else (["SLURM=1"],):
            command = ["make", "cluster", *settings(compose), *more]
            subprocess.run(command, cwd=ROOT, check=True, timeout=600)
        yield compose
    finally:
        subprocess.run(["make", "cluster-down", *settings(compose)], cwd=ROOT, check=True, timeout=120)


def settings(compose: list[str]) -> list[str]:
    """Return the variables of `make cluster` for another name and port."""
    return [f"COMPOSE={' '.join(compose)}", "PORT=8977"]


@pytest.mark.timeout(800)
def test_containers_are_hosts_without_a_right_to_spare(containers: list[str]) -> None:
    done = subprocess.run(
        [*containers, "exec", "-T", "lab", "python", "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert len({name for name, _ in found}) == 3 and {uid for _, uid in found} == {1000}
    status = [*containers, "exec", "-T", "host", "grep", "-E", "^(CapEff|NoNewPrivs)", "/proc/self/status"]
    rights = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, timeout=T).stdout.split()
    assert rights == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1"]


CELLS = (
    "%load_ext monarch_nb",
    "%mesh start big --on slurm --hosts 3 --procs 1 --controller inside",
    "%%mesh\nimport os, socket\nprint(socket.gethostname(), os.getuid(), os.environ['SLURM_JOB_ID'])",
    "%mesh stop",
    "!squeue --noheader --states=PENDING,RUNNING",
)


@pytest.mark.timeout(800)
def test_a_notebook_has_its_controller_inside_a_slurm_in_containers(containers: list[str]) -> None:
    """As a notebook of the JupyterLab that `make cluster SLURM=1` brings up."""
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    said = executed(containers, nbformat.v4.new_notebook(cells=cells))
    found = re.findall(r"\[\d\] (\S+) (\d+) (\d+)", said)
    assert len({name for name, _, _ in found}) == 3, said
    assert {(user, job) for _, user, job in found} == {("1000", found[0][2])}, said


@pytest.mark.timeout(800)
def test_the_tutorial_runs_on_containers_and_their_slurm(containers: list[str]) -> None:
    book = nbformat.read(ROOT / "notebooks" / "12_clusters.ipynb", as_version=4)
    said = executed(containers, book)
    assert "is skipped" not in said and re.search(r"in job \d+", said), said
    assert "healed by itself: host" in said and re.search(r"slurm job \d+: granted", said), said
    lost = re.findall(r"host (\w+) replaced", said)
    assert lost and all(re.fullmatch("[0-9a-f]{12}", name) for name in lost), "a container is a host"


def executed(containers: list[str], book: nbformat.NotebookNode) -> str:
    """Execute a notebook in the container of JupyterLab; return all that it showed."""
    program = (
        "import sys, nbformat, nbclient; b = nbformat.reads(sys.stdin.read(), 4); "
        "nbclient.NotebookClient(b, timeout=200).execute(); print(nbformat.writes(b))"
    )
    run = [*containers, "exec", "-T", "lab", "python", "-c", program]
    done = subprocess.run(
        run, cwd=ROOT, input=nbformat.writes(book), capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    return "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for cell in nbformat.reads(done.stdout, 4).cells
        for output in cell.get("outputs", ())
    )
