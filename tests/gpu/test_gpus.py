"""GPUs: what must hold on a machine that has some, as `make gpu` checks it; and that command itself, also
without any.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import check_gpus
import gpu_checks  # noqa: F401  fills the list
import pytest
import torch
from gpu_rig import CHECKS, LeftOut, Rig

sys.path.append(str(Path(__file__).parents[1] / "rdma"))  # two_planes

ROOT = Path(__file__).parents[2]
OWN_CHECKS = """
import os, signal, subprocess, sys, time
from gpu_rig import LeftOut, check

@check("all is well")
def holds(rig): return "42 GB/s"

@check("is wrong")
def raises(rig): raise ValueError("what is wrong")

@check("can't be shown")
def leaves_out(rig): raise LeftOut("it's too small")

@check("crashes")
def crashes(rig): os.kill(os.getpid(), signal.SIGSEGV)

@check("hangs, and has started something")
def hangs(rig):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with open(os.environ["OWN_CHECKS_PID"], "w") as file: file.write(str(child.pid))
    signal.pause()

@check("comes after")
def comes_after(rig): pass
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("gpus"))
    before = Path.cwd()
    yield made
    made.close()
    os.chdir(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("name", list(CHECKS))
def test_on_gpus(rig: Rig, name: str) -> None:
    try:
        rig.run(name)
    except LeftOut as why:
        pytest.skip(str(why))


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(ROOT / "tests" / "gpu" / "check_gpus.py"), *arguments]
    return subprocess.run(
        line, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110
    )


def test_make_gpu_without_a_gpu_says_so_in_one_line() -> None:
    run = subprocess.run(
        ["make", "--no-print-directory", "gpu", f"GPU_PYTHON={sys.executable}"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "CUDA_VISIBLE_DEVICES= hides all GPUs: no GPU was checked\n"
    assert run.stderr == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reason, status = check_gpus.why_no_gpu() or ("", -1)
    if os.path.isdir("/proc/driver/nvidia/gpus"):
        assert status == 2
        assert "there is an NVIDIA GPU, but torch" in reason
    else:
        assert (reason, status) == ("no NVIDIA GPU on this machine: no GPU was checked", 0)


def test_what_fails_crashes_or_hangs_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "own_checks.py").write_text(OWN_CHECKS)
    pid_file = tmp_path / "pid"
    run = command(
        "--rehearse",
        "--checks",
        "own_checks",
        "--check-s",
        "5",
        PYTHONPATH=str(tmp_path),
        OWN_CHECKS_PID=str(pid_file),
    )
    lines = {row[19:].partition(":")[0]: row for row in run.stdout.splitlines()}
    assert lines["all is well"].startswith("held ")
    assert lines["all is well"].endswith("all is well: 42 GB/s")
    assert lines["is wrong"].startswith("FAILED ")
    assert lines["is wrong"].endswith("ValueError: what is wrong")
    assert lines["can't be shown"].startswith("left out ")
    assert "its process ended with status -11" in lines["crashes"]
    assert "not over after 5 s" in lines["hangs, and has started something"]
    assert lines["comes after"].startswith("held ")
    assert "2 held, 3 failed, 1 left out" in run.stdout
    assert "in hangs" in run.stdout, "no stack of what hung"
    assert run.returncode == 1
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


def test_the_time_for_all_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "own_checks.py").write_text(OWN_CHECKS)
    run = command("--rehearse", "--checks", "own_checks", "--total-s", "0.0", PYTHONPATH=str(tmp_path))
    assert "0 held, 0 failed, 6 left out" in run.stdout
    assert run.stdout.count("the 0 s for all checks were over") == 6
