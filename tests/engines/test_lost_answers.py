"""A job of Slurm whose answer is lost is found again: nothing allocated is forgotten."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurmd import SETUP, Cluster
from sshd import Profiles
from terminal import Terminal
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb._commands.clusters import queue_text
from monarch_nb.job import SlurmJob
from monarch_nb.job.allocation import Plan, list_records
from monarch_nb.job.engines import ENGINES, NoAnswer, slurm
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import on_engine

Sbatch = Callable[[str], None]
PROFILE = f'[lab]\nengine = "slurm"\nhosts = 1\nsetup = [{SETUP!r}]\n[lab.slurm]\ncomment = "\'of mine\'"\n'
SUBMIT = 'number="$({real} "$@")"'
HANGS = f'{SUBMIT}\necho $$ >"$0.number.asker"\necho "$number" >"$0.number"\nexec sleep 600'
CHATS = f"{SUBMIT}\necho Welcome to the cluster"
REFUSES = "cat >/dev/null\necho Welcome to the cluster"


@pytest.fixture
def sbatch(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sbatch]:
    """Write an sbatch that stands before the real one."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    path, real = tmp_path / "bin" / "sbatch", re.escape(shutil.which("sbatch") or "")
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    def write(script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script.replace('{real}', real)}\n")
        path.chmod(0o755)

    current = sessions._current
    yield write
    sessions._current = current
    assert list_records() == []
    wait_until(lambda: cluster.idle_nodes() == 3, f"idle nodes: {cluster.command('squeue')}")


def start(name: str) -> None:
    on_engine.start_on(name, find_profile("lab", ENGINES), Plan((("procs", 1),)))


def test_a_job_whose_number_is_lost_is_given_back(
    cluster: Cluster, sbatch: Sbatch, profiles: Profiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles(PROFILE)
    monkeypatch.setattr(slurm, "SUBMIT_S", 5.0)
    for script, message in ((HANGS, "sbatch --parsable has given no answer"), (CHATS, "no job's number")):
        sbatch(script)
        with pytest.raises(NoAnswer, match=message):
            start("lost")
        found = cluster.command("squeue", "-h", "--states=all", "--name=monarch-nb-lost", "-o", "%T %k")
        assert found and set(re.findall(r"^[A-Z]+", found, re.MULTILINE)) <= {"CANCELLED", "COMPLETING"}
        assert "of mine,monarch-nb-lost-" in found, "what a profile says is kept"
    sbatch(CHATS)
    with pytest.raises(NoAnswer, match="no job's number"):
        SlurmJob({"a": 1}, setup=[SETUP]).state()
    assert not cluster.command("squeue", "-h", "--states=RUNNING,PENDING", "-o", "%i")


def test_a_request_that_slurm_may_have_stays_on_record(sbatch: Sbatch, profiles: Profiles) -> None:
    profiles(PROFILE)
    sbatch(REFUSES)
    with pytest.raises(NoAnswer, match=r"slurm may have the request .* give it up: %mesh cancel unsure"):
        start("unsure")
    for _ in range(2):
        assert re.search("unsure .*slurm doesn't know it so far; give it up: %mesh cancel", queue_text())
    on_engine.cancel("unsure")


def test_a_program_that_is_killed_while_it_asks_forgets_no_job(
    cluster: Cluster, sbatch: Sbatch, tmp_path: Path
) -> None:
    (tmp_path / "laptop").mkdir()
    laptop = Terminal(tmp_path / "laptop", SLURM_CONF=str(cluster.config))
    number = tmp_path / "bin" / "sbatch.number"
    laptop.write_profiles(PROFILE)
    sbatch(HANGS)
    asks = laptop.begin("start", "big", "--on", "lab", "--procs", "1")
    wait_until(lambda: number.exists() and number.read_text().strip(), "a job")
    asks.kill()
    asks.communicate()
    os.kill(int(Path(f"{number}.asker").read_text()), signal.SIGKILL)
    job = number.read_text().strip()
    try:
        assert f"slurm job {job} on lab" in laptop.types("queue")
        assert "(hosts=1, procs=1: rank 0) is ready" in laptop.types("start", "big")
        assert cluster.command("squeue", "-h", "-o", "%i").split() == [job], "no second one"
    finally:
        assert "was cancelled" in laptop.types("cancel", "big")
