"""Which engines can be used here: all are asked at once, and each says what to type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sshd import Profiles
from waiting import wait_until

from monarch_nb._commands import clusters
from monarch_nb.job.engines.slurm import Slurm
from monarch_nb.job.spec import HostSpec

ASKS_RAY = """
import subprocess, sys
from monarch_nb.job.engines.ray import Ray
from monarch_nb.job.spec import HostSpec
spec = HostSpec("ray", own=(("driver", sys.argv[1]),))
print(Ray().usable(spec).why_not)
argv = ["sh", "-c", "read end", "raylet", "--gcs-address=127.0.0.1:1"]
daemon = subprocess.Popen(argv, stdin=subprocess.PIPE)
print(Ray().usable(spec).why_not or "yes")
daemon.communicate(b"end\\n")
"""


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_engine_that_does_not_answer_keeps_no_other_waiting(
    tmp_path: Path, profiles: Profiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles('[one]\nengine = "slurm"\n[two]\nengine = "slurm"\n[far]\nengine = "ssh"\nhosts = ["a"]\n')
    asked, bin_folder = tmp_path / "asked", tmp_path / "bin"
    asked.mkdir()
    bin_folder.mkdir()
    _script(bin_folder / "sbatch", "")
    waits = f"touch {asked}/$$\nwhile [ ! -e {tmp_path}/goes ]; do sleep 0.05; done\necho slurm"
    _script(bin_folder / "sinfo", waits)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setattr(clusters, "ASK_S", 3.0)
    before = set(threading.enumerate())
    try:
        rows = {line.split()[0]: line for line in clusters.clusters_text().splitlines()}
        assert rows["one"].endswith("no answer within 3 s") and rows["two"].endswith("within 3 s")
        assert rows["command"].endswith("yes") and "far" in rows
        wait_until(lambda: len(list(asked.iterdir())) >= 3, "all profiles are asked")
    finally:
        (tmp_path / "goes").touch()
        for thread in set(threading.enumerate()) - before:
            thread.join()


@pytest.mark.skipif(shutil.which("sinfo") is None, reason="no sinfo: apt-get install slurm-client")
@pytest.mark.skipif(os.path.exists("/etc/slurm/slurm.conf"), reason="Slurm is configured here")
def test_slurm_without_its_configuration_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert Slurm().usable(HostSpec("slurm")).why_not == (
        "Slurm isn't configured here: there is no slurm.conf. Name a login node, "
        'login = "me@login" in the profile; or set SLURM_CONF'
    )


@pytest.mark.skipif(os.getuid() != 0, reason="processes of one's own to look at need root here")
def test_ray_is_usable_where_one_runs(tmp_path: Path) -> None:
    """Among processes of its own: others of this machine may run Ray."""
    driver = _script(tmp_path / "python", "echo True")  # an interpreter that has ray
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-P", "-c", ASKS_RAY, str(driver)],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    none, some = done.stdout.splitlines()
    assert none.startswith("no Ray runs on this machine: address = HOST:PORT in [.ray]") and some == "yes"
