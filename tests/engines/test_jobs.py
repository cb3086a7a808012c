"""Monarch's job names on real engines, and the notebook's verbs on them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurmd import SETUP, Cluster
from sshd import Profiles, Sshd
from waiting import wait_until

from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.job import SlurmJob, SSHJob, job_load, job_loads
from monarch_nb.job.allocation import list_records
from monarch_nb.mesh import on_engine

T = 60


def job_number() -> str:
    return os.environ.get("SLURM_JOB_ID", "")


def test_an_ssh_job_gives_hosts_by_name(two_hosts: Sshd) -> None:
    described = SSHJob({"trainers": ["he1"], "others": ["he2"]}, config=str(two_hosts.config))
    job = job_loads(described.dumps())
    assert isinstance(job, SSHJob) and job.can_run(described) == ""
    state = job.state()
    try:
        assert list_records()[0].spec.machines == ("he1", "he2")
        for mesh in (state.trainers, state.others):
            procs = mesh.spawn_procs({"procs": 1})
            assert (
                procs.sizes == {"hosts": 1, "procs": 1}
                and len(set(procs.execute(os.getpid).get(T).values())) == 1
            )
    finally:
        job.kill()
    assert list_records() == []


def test_a_slurm_job_gives_its_nodes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    job = SlurmJob(
        {"trainers": 1, "others": 1}, time_limit="0:10:00", slurm_args=["--comment=x"], setup=[SETUP]
    )
    state = job.state()
    try:
        (asked,) = list_records()
        found = state.trainers.spawn_procs({"procs": 1}).execute(job_number).get(T)
        assert set(found.values()) == {asked.id} == {cluster.command("squeue", "-h", "-o", "%i")}
        assert job.can_run(SlurmJob({"trainers": 4}, time_limit="2h")).startswith(
            "hosts 2 -> 4, time 10min -> 2h"
        )
    finally:
        job.kill()
    assert list_records() == []
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")


CACHED = """
import os, sys
from monarch_nb._protocol.programs import Status
from monarch_nb.actor import Actor, endpoint
from monarch_nb.actor.handle import session_of
from monarch_nb.job import SlurmJob

class Where(Actor):
    @endpoint
    def job(self):
        return f"{os.environ['SLURM_JOB_ID']} {os.getppid()}"

job = SlurmJob({"trainers": int(sys.argv[2])}, setup=[sys.argv[3]])
state = job.state(cached_path=sys.argv[1])
procs = state.trainers.spawn_procs({"procs": 1})
(where,) = procs.spawn("where", Where).job.call().get(60).values()
running = [row.rank for row in session_of(procs).request(Status()).procs if row.state == "running"]
print(where, running, flush=True)
if sys.argv[4] == "kill":
    job.kill()
elif sys.argv[4] == "crash":
    os.kill(os.getpid(), 9)
"""


def test_another_program_finds_the_hosts_of_a_job_by_its_file(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    path = tmp_path / ".monarch" / "job_state.pkl"

    def run(num: int, end: str) -> tuple[str, str]:
        argv = [sys.executable, "-P", "-c", CACHED, str(path), str(num), SETUP, end]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * T)
        return done.stdout, done.stderr

    first, said = run(1, "crash")
    try:
        number = first.split()[0] if first else said
        assert number == cluster.command("squeue", "-h", "-o", "%i"), said
        assert job_load(path).can_run(SlurmJob({"trainers": 1}, setup=[SETUP])) == ""
        assert re.search(
            r"runs with other hosts: hosts 1 -> 2\. End it: %mesh cancel job-", run(2, "stay")[1]
        )
        again, said = run(1, "kill")
        assert again == first, f"the same job and host process, and no rank of the first program: {said}"
    finally:
        for asked in list_records():
            on_engine.cancel(asked.mesh, forgets=True)
    assert not path.exists()
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")
    path.write_text("{")
    with pytest.raises(MeshUsageError, match=rf"cached_path {path} is no file of a job .*: remove it"):
        SlurmJob({"trainers": 1}).state(cached_path=path)
    path.write_text(json.dumps({"mesh": "big"}))
    with pytest.raises(MeshUsageError, match="names no mesh of a job"):
        SlurmJob({"trainers": 1}).state(cached_path=path)


def test_what_a_job_cannot_be_is_said_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    with pytest.raises(MeshUsageError, match="HH:MM:SS"):
        SlurmJob({"a": 1}, time_limit="soon")
    with pytest.raises(MeshUsageError, match="flags of sbatch"):
        SlurmJob({"a": 1}, slurm_args=["qos=high; rm x"])
    with pytest.raises(
        MeshUsageError, match="SlurmJob: 4 hosts were asked for, and the largest partition has 3"
    ):
        SlurmJob({"a": 4}).state()
    with pytest.raises(MeshError, match="there is no host of that name"):
        SSHJob({"a": ["nowhere.invalid"]}).state()
    assert list_records() == []


@pytest.fixture
def notebook(
    two_hosts: Sshd, profiles: Profiles, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[object]:
    """A kernel that knows a lab by ssh and one by Slurm."""
    sys.path.append(str(Path(__file__).parents[1] / "notebook"))
    from kernels import Notebook

    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    profiles(
        '[lab]\nengine = "ssh"\nhosts = ["he[1-2]"]\nusd_per_gpu_hour = 2\n[lab.ssh]\nconfig = '
        f'"{two_hosts.config}"\n[big]\nengine = "slurm"\nhosts = 3\nsetup = [{SETUP!r}]\n'
    )
    kernel = Notebook()
    kernel.run("%load_ext monarch_nb")
    yield kernel
    kernel.close()
    sys.path.pop()


def test_a_notebook_runs_on_real_hosts(notebook: object, cluster: Cluster) -> None:
    text = notebook.text  # type: ignore[attr-defined]
    assert "mesh 'far' (hosts=2, procs=1: ranks 0-1) is ready" in text("%mesh start far --on lab --procs 1")
    assert text("%%mesh\nimport os\nprint(bool(os.environ.get('SSH_CONNECTION')))").count("True") == 1
    found = text("%mesh hosts")
    assert "he1" in found and "he2" in found and "ssh on lab: granted" in found
    assert "lab" in text("%mesh clusters") and "far" in text("%mesh queue")
    assert "attached to mesh 'far'" in text("%mesh start far --on lab")
    assert "runs already, with other hosts: hosts none -> 1" in text("%mesh start far --on lab --hosts 1")
    assert "no profile or engine 'lap'. Did you mean lab?" in text("%mesh start other --on lap")
    assert "--job local is for this machine" in text("%mesh start other --on lab --job local")
    assert "--time is for hosts of an engine" in text("%mesh start other --time 2h")
    assert "#SBATCH --nodes=3" in text("%mesh start other --on big --dry-run")
    assert "mesh 'far' has ended" in text("%mesh stop far") and "no hosts of engines" in text("%mesh queue")


def test_a_notebook_waits_in_the_queue_and_another_goes_on(notebook: object, cluster: Cluster) -> None:
    text = notebook.text  # type: ignore[attr-defined]
    number = cluster.command(
        "sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    )
    try:
        wait_until(lambda: cluster.idle_nodes() == 0, "a full cluster")
        assert "stays in the queue: no hosts within 2 s. Wait on: %mesh start big" in text(
            "%mesh start big --on big --procs 1 --wait 2 --keep-queued"
        )
        notebook.restart()  # type: ignore[attr-defined]
        text("%load_ext monarch_nb")
        assert "queued" in text("%mesh queue")
    finally:
        cluster.command("scancel", number)
    assert "(hosts=3, procs=1: ranks 0-2)" in text("%mesh start big")
    assert "of mesh 'big' was cancelled" in text("%mesh cancel big")
    assert "no hosts of an engine were requested for a mesh 'big'" in text("%mesh cancel big")
    wait_until(lambda: cluster.idle_nodes() == 3, "idle nodes")
