"""TorchTitan on replica groups: one is killed, and comes back with the other's weights and step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from titan_files import write_titan_files

import monarch_nb.actor
from monarch_nb.actor import ProcMesh, this_host
from monarch_nb.exceptions import ActorError
from monarch_nb.ft import ReplicaGroups, train_titan

pytest.importorskip("torchtitan.experiments.torchft", reason="torchtitan isn't installed")
pytest.importorskip("torchft", reason="needs torchft: pip install torchft")

NUM_STEPS = 20


@pytest.fixture
def procs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcMesh]:
    write_titan_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", lambda failure: None)
    mesh = this_host().spawn_procs({"replicas": 2})
    mesh.initialized.get(60)
    yield mesh
    mesh.stop(grace_s=0.0).get(60)


def steps_of(folder: Path, group: int) -> dict[int, list[int]]:
    """Return the steps of each process that was the group's."""
    return {
        int(path.name.split("-")[2]): [int(line) for line in path.read_text().split()]
        for path in folder.glob(f"steps-{group}-*")
    }


@pytest.mark.timeout(400)
def test_a_group_that_is_killed_goes_on_where_the_other_is(procs: ProcMesh, tmp_path: Path) -> None:
    (tmp_path / "trap").touch()
    pids = list(procs.execute(os.getpid).get(60).values())
    groups = ReplicaGroups(procs, "replicas", min_replicas=2)  # the other waits: both end at one step
    results = groups.run(train_titan, "--module", "healed_llama", "--config", "small")
    assert [r.num_restarts for r in results] == [0, 1], [str(e) for r in results for e in r.errors]
    assert "killed by SIGKILL" in str(results[1].errors[0])
    assert steps_of(tmp_path, 0) == {pids[0]: list(range(1, NUM_STEPS + 1))}, "it was not started again"
    lives = steps_of(tmp_path, 1)
    assert lives.pop(pids[1]) == list(range(1, 7))
    ((pid, steps),) = lives.items()
    assert pid != pids[1]
    assert steps[:3] == [1, 2, 3] and steps[-1] == NUM_STEPS
    assert steps[3] >= 7, "at the first synchronisation it takes the other's step, which is past the kill"


def test_what_cant_be_is_said(procs: ProcMesh) -> None:
    with pytest.raises(ActorError, match=r"train_titan runs in a replica group: ReplicaGroups\(mesh"):
        procs.execute(train_titan, "--module", "healed_llama").get(60)
