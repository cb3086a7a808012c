"""TorchTitan's own trainer with a config of the user's, on CPUs: a small Llama over two ranks, nothing is
downloaded. Skipped where TorchTitan isn't installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_meshes import own_mesh
from titan_files import write_titan_files

from monarch_nb.exceptions import ActorError, DeviceMeshError
from monarch_nb.mesh import Mesh

pytest.importorskip("torchtitan", reason="torchtitan isn't installed")

TITAN = ("monarch_nb.spmd.titan", "--module", "small_llama", "--config", "small")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("titan")
    write_titan_files(found)
    return found


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("titan", {"gpus": 2}, env={"OMP_NUM_THREADS": "1"}) as found:
        yield found


@pytest.fixture(autouse=True)
def in_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HOME", str(tmp_path))


def losses(text: str) -> list[str]:
    """Return the losses that were printed, those of equal lines of ranks once."""
    return list(dict.fromkeys(re.findall(r"step: +(\d+  loss: +[\d.]+)", text)))


def test_its_trainer_runs_again_and_again_with_the_users_config(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for _ in range(2):
        mesh.run_script(*TITAN, is_module=True, timeout=200)
        found.append(losses(capsys.readouterr().out))
    assert found[0] == found[1] and [line.split()[0] for line in found[0]] == ["1", "2", "3"]
    assert float(found[0][-1].split()[-1]) < float(found[0][0].split()[-1])


def test_losses_are_those_of_torchrun_to_the_last_bit(mesh: Mesh, folder: Path) -> None:
    arguments = ("exact.py", *TITAN[1:], "--training.steps", "5")
    mesh.run_script(arguments[0], *arguments[1:], env={"STEPS": "ours"}, quiet=True, timeout=200)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = {**os.environ, "STEPS": "theirs", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*launcher, *arguments], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 0, ran.stderr
    ours, theirs = (
        [[step[:4] for step in json.loads((folder / f"{who}{rank}").read_text())] for rank in range(2)]
        for who in ("ours", "theirs")
    )
    assert ours == theirs
    assert [step[0] for step in ours[0]] == [1, 2, 3, 4, 5] and len({step[1] for step in ours[0]}) == 5


def test_what_it_switches_off_is_on_again_in_cells(mesh: Mesh) -> None:
    """Its trainer collects garbage itself, and makes the root logger print."""
    mesh.run("import gc, logging\nfound = gc.isenabled(), logging.root.level", quiet=True)
    assert set(mesh.pull("found").values()) == {(True, 30)}


def test_arguments_of_the_command_line_change_the_config(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    mesh.run_script(*TITAN, "--training.steps", "1", "--training.seq-len", "16", is_module=True, timeout=100)
    assert len(losses(capsys.readouterr().out)) == 1


def test_a_config_that_is_not_there_is_one_error(mesh: Mesh) -> None:
    with pytest.raises(
        (ActorError, DeviceMeshError), match="Config function 'large' not found in small_llama"
    ):
        mesh.run_script(*TITAN[:-1], "large", is_module=True, timeout=100)
