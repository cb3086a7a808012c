"""torchrun's command lines as Monarch's jobs: hosts once, the script again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from own_meshes import own_this_host

from monarch_nb.exceptions import ActorError, MeshUsageError, SupervisionError
from monarch_nb.job import job_loads
from monarch_nb.job.spmd import Command, SPMDJob, serve

SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
found = torch.ones(1)
dist.all_reduce(found)
mode = sys.argv[1]
if mode == "fail" and dist.get_rank() == 1 and os.path.exists("fails"):
    sys.exit(3)
if dist.get_rank() == 0 and os.path.exists("dies"):
    os.remove("dies")
    os.kill(os.getpid(), signal.SIGKILL)
if dist.get_rank() == 0:
    with open("runs", "a") as file:
        print(int(found), os.getpid(), os.environ["SEED"], os.environ["GROUP_WORLD_SIZE"], file=file)
"""
COMMAND = ["torchrun", "--nproc-per-node=2", "--standalone", "train.py", "fail"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found, before = tmp_path_factory.mktemp("served"), os.getcwd()
    (found / "train.py").write_text(SCRIPT)
    os.chdir(found)
    with own_this_host():
        yield found
        os.chdir(before)


@pytest.fixture(scope="module")
def job(folder: Path) -> Iterator[SPMDJob]:
    found = serve(COMMAND, scheduler="local_cwd", env={"SEED": "7"})
    yield found
    found.kill()


def runs(folder: Path) -> list[list[str]]:
    """Return what each run has written: ranks that were there, the first one's pid, a variable, hosts."""
    return [line.split() for line in (folder / "runs").read_text().splitlines()]


def test_it_runs_again_on_the_same_processes(job: SPMDJob, folder: Path) -> None:
    job.run_spmd()
    job.run_spmd()
    first, second = runs(folder)
    assert first == second and (first[0], *first[2:]) == ("2", "7", "1")


def test_an_exit_code_is_an_error_and_the_next_run_is_none(job: SPMDJob, folder: Path) -> None:
    (folder / "fails").touch()
    with pytest.raises(ActorError, match="the script has exited with code 3"):
        job.run_spmd()
    (folder / "fails").unlink()
    job.run_spmd()


def test_after_a_process_has_died_the_next_run_has_others(job: SPMDJob, folder: Path) -> None:
    (folder / "dies").touch()
    before = runs(folder)[-1]
    with pytest.raises((SupervisionError, ActorError)):
        job.run_spmd()
    job.run_spmd()
    assert runs(folder)[-1][1] != before[1]


def test_several_hosts_and_an_appdef(folder: Path) -> None:
    args = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "-m", "train", "pass"]
    role = SimpleNamespace(entrypoint="workspace/entrypoint.sh", args=args, env={"SEED": "8"})
    job = serve(SimpleNamespace(roles=[role]))
    try:
        job.run_spmd()
        assert runs(folder)[-1][0] == "2" and runs(folder)[-1][2:] == ["8", "2"]
    finally:
        job.kill()


def test_it_is_run_again_as_often_as_it_may_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Torchrun's --max-restarts: a process that dies once is no failure, an exit code that stays is one."""
    job = serve(
        ["torchrun", "--nproc-per-node=2", "--max-restarts", "1", "train.py", "fail"], env={"SEED": "9"}
    )
    try:
        (folder / "dies").touch()
        job.run_spmd()
        assert runs(folder)[-1][2] == "9" and capsys.readouterr().err.count("it is run again") == 1
        (folder / "fails").touch()
        with pytest.raises(ActorError, match="the script has exited with code 3"):
            job.run_spmd()
        assert capsys.readouterr().err.count("it is run again") == 1
    finally:
        (folder / "fails").unlink()
        job.kill()


def test_what_torchx_writes_by_itself_is_passed_over() -> None:
    args = [
        "torchrun",
        "--rdzv_backend",
        "c10d",
        "--tee",
        "3",
        "--role",
        "",
        "--max_restarts=2",
        "-m",
        "train",
    ]
    role = SimpleNamespace(entrypoint="entrypoint.sh", args=[*args, "--tee", "2"], env={})
    job = serve(SimpleNamespace(roles=[role]))
    job.kill()
    parsed = Command.parse(job.command)
    assert (parsed.script_args, parsed.max_restarts) == (("-m", "train", "--tee", "2"), 2)
    role.args.insert(1, "--log-dir=logs")
    with pytest.raises(MeshUsageError, match="serve: --log-dir means nothing here"):
        serve(SimpleNamespace(roles=[role]))


def test_its_description_travels(job: SPMDJob) -> None:
    again: Any = job_loads(job.dumps())
    assert (again.command, again.env, again.active) == (tuple(COMMAND), {"SEED": "7"}, False)


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ([], {}, "takes a command line of torchrun as a list"),
        (["mpirun", "train.py"], {}, "takes a command line of torchrun as a list"),
        ("torchrun train.py", {}, "takes a list of words"),
        (["torchrun"], {}, "^serve: the following arguments are required: training_script"),
        (["torchrun", "--nodes", "2", "train.py"], {}, "serve: "),
        (["torchrun", "--nnodes=1:4", "train.py"], {}, "--nnodes is one number of hosts"),
        (["torchrun", "--max-restarts", "-1", "train.py"], {}, "--max-restarts is how often it's run again"),
        (["torchrun", "--node-rank", "1", "train.py"], {}, "--node-rank means nothing here: .*scheduler="),
        (["python", "-m"], {}, "no script is named"),
        (["python", "-u", "train.py"], {}, "-u means nothing here"),
        (["torchrun", "train.py"], {"scheduler": "mast_conda"}, "scheduler is one of local_cwd, slurm, ssh"),
        (["torchrun", "train.py"], {"scheduler_cfg": {"partition": "a"}}, "scheduler_cfg of local_cwd: "),
    ],
)
def test_what_cant_be_is_said(words: Any, options: Any, message: str) -> None:
    with pytest.raises(MeshUsageError, match=message):
        serve(words, **options)


def test_a_number_of_processes_that_cant_be_is_said(job: SPMDJob) -> None:
    wrong = SPMDJob(["torchrun", "--nproc-per-node=many", "train.py"])
    with pytest.raises(MeshUsageError, match="--nproc-per-node many"):
        wrong.run_spmd()
