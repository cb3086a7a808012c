"""Scalars of all ranks in one run, read back by each tracker's own library; each is skipped where that
isn't installed.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_meshes import own_mesh

import monarch_nb
from monarch_nb.exceptions import ActorError, DeviceMeshError, MeshError, MeshUsageError
from monarch_nb.mesh import Mesh

TRAIN = """
from monarch_nb.tracking import log
import torch
for step in range(3):
    log({"loss": torch.tensor(float(10 * step + rank))}, step)
if rank == 0:
    run.log({"accuracy": 0.5}, 7)
"""
MEANS = [(0, 0.5), (1, 10.5), (2, 20.5)]


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    env = {"WANDB_MODE": "offline", "MLFLOW_ALLOW_FILE_STORE": "true"}
    with own_mesh("tracked", {"gpus": 2}, env=env) as found:
        yield found


def train(mesh: Mesh, **options: Any) -> monarch_nb.tracking.TrackedRun:
    run = monarch_nb.track(mesh, config={"lr": 0.1}, **options)
    mesh.push({"run": run})
    mesh.run(TRAIN, quiet=True)
    run.log({"evaluated": 3}, 1)
    run.finish()
    run.finish()
    return run


def test_tensorboard(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard isn't installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(mesh, to="tensorboard", folder=tmp_path)
    events = EventAccumulator(run.where)
    events.Reload()
    found = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert found == {
        "loss": MEANS, "loss/rank0": [(0, 0.0), (1, 10.0), (2, 20.0)],
        "loss/rank1": [(0, 1.0), (1, 11.0), (2, 21.0)],
        "accuracy": [(7, 0.5)], "accuracy/rank0": [(7, 0.5)], "evaluated": [(1, 3.0)],
    }  # fmt: skip
    assert {"mesh/num_ranks/text_summary", "lr/text_summary"} <= set(events.Tags()["tensors"])


def test_wandb_offline(mesh: Mesh, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb", reason="wandb isn't installed")
    run = train(mesh, to="wandb", folder=tmp_path)
    folders = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 1 and str(folders[0]) in run.where
    (file,) = folders[0].glob("*.wandb")
    records = list(records_of(file.read_bytes()))
    (begun,) = (record.run for record in records if record.HasField("run"))
    assert (begun.run_group, begun.project) == ("tracked", "tracked"), "runs of a mesh stand together"
    config = {each.key: json.loads(each.value_json) for each in begun.config.update}
    assert (config["lr"], config["mesh/num_ranks"], config["mesh/name"]) == (0.1, 2, "tracked")
    assert len(config["mesh/environment"]) > 3
    rows = [
        {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    found = {name: [(r["step"], r[name]) for r in rows if name in r] for name in ("loss", "loss/rank1")}
    assert found == {"loss": MEANS, "loss/rank1": [(0, 1.0), (1, 11.0), (2, 21.0)]}
    shown = capfd.readouterr()
    assert "wandb" not in shown.out + shown.err


def records_of(data: bytes) -> Iterator[Any]:
    """Yield what W&B has written offline: blocks of 32 KiB after a header, each with parts of records."""
    from wandb.proto import wandb_internal_pb2

    at, whole, block, is_last = 7, b"", 1 << 15, (1, 4)
    while at + 7 <= len(data):
        if (left := block - at % block) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in is_last:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def test_mlflow(mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more than mlflow-skinny
    pytest.importorskip("mlflow", reason="mlflow isn't installed")
    from mlflow.tracking import MlflowClient

    store = f"file://{tmp_path}/runs"
    try:
        client = MlflowClient(store)
        client.search_experiments()
    except Exception as error:
        pytest.skip(f"mlflow has no store of files here: {error}")
    train(mesh, to="mlflow", folder=store, project="tests", name="first")
    experiment = client.get_experiment_by_name("tests")
    (found,) = client.search_runs([experiment.experiment_id])
    assert [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss")] == MEANS
    params = found.data.params
    assert (params["mesh/num_ranks"], params["lr"]) == ("2", "0.1") and len(params["mesh/environment"]) > 3
    assert found.info.run_name == "first" and found.info.status == "FINISHED"


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip("mlflow", reason="mlflow isn't installed")
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(f"file://{tmp_path}/runs")
        client.search_experiments()
    except Exception as error:
        pytest.skip(f"mlflow has no store of files here: {error}")
    return client


def begin(mesh: Mesh, client: Any) -> monarch_nb.tracking.TrackedRun:
    return monarch_nb.track(mesh, to="mlflow", folder=client.tracking_uri, project="tests")


def the_run(client: Any) -> Any:
    (found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    return found


def metrics(client: Any, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(the_run(client).info.run_id, name)]


def test_a_block_that_fails_is_a_failed_run_of_mlflow(mesh: Mesh, mlflow_client: Any) -> None:
    run = begin(mesh, mlflow_client)
    run.log({"loss": 1.0}, 0)
    with pytest.raises(MeshUsageError, match="not a number"), run:
        run.log({"loss": "high"}, 1)
    assert the_run(mlflow_client).info.status == "FAILED" and metrics(mlflow_client, "loss") == [(0, 1.0)]
    run.finish()
    assert the_run(mlflow_client).info.status == "FAILED", "a finish after it changes nothing"


def test_a_block_whose_rank_has_died_raises_its_own_error(
    mesh: Mesh, mlflow_client: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DeviceMeshError, match="exited with code 3"), begin(mesh, mlflow_client) as run:
        mesh.part([0]).execute(os._exit, 3).get(60)
    assert "couldn't be ended as failed" in capfd.readouterr().err
    mesh.heal()
    run.finish(failed=True)
    assert the_run(mlflow_client).info.status == "FAILED"


def test_ranks_that_were_healed_or_added_adopt_the_run(mlflow_client: Any) -> None:
    with own_mesh("growing", {"procs": 2}, env={"MLFLOW_ALLOW_FILE_STORE": "true"}) as mesh:
        run = begin(mesh, mlflow_client)
        with pytest.raises(DeviceMeshError):
            mesh.part([1]).execute(os._exit, 3).get(60)
        mesh.heal()
        source = "from monarch_nb.tracking import log\nlog({'loss': float(rank)}, %d)"
        mesh.run(source % 0, quiet=True)
        assert metrics(mlflow_client, "loss") == [(0, 0.5)]
        mesh.resize(procs=3)
        mesh.run(source % 1, quiet=True)
        assert metrics(mlflow_client, "loss") == [(0, 0.5), (1, 1.0)], "the mean of all three"
        mesh.resize(procs=1)
        mesh.run(source % 2, quiet=True)
        run.finish()
        assert metrics(mlflow_client, "loss") == [(0, 0.5), (1, 1.0), (2, 0.0)]
        assert metrics(mlflow_client, "loss.rank2") == [(1, 2.0)]


def test_a_mesh_without_a_run_says_so(mlflow_client: Any) -> None:
    with own_mesh("untracked", {"procs": 1}) as mesh:
        with pytest.raises(
            ActorError, match=r"log: no run has begun on this mesh: monarch_nb\.track\(mesh\)"
        ):
            mesh.run("from monarch_nb.tracking import log\nlog({'loss': 1.0}, 0)", quiet=True)


def test_a_block_that_fails_is_a_failed_run_of_wandb(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb isn't installed")
    for fails in (False, True):
        folder = tmp_path / str(fails)
        folder.mkdir()
        try:
            with monarch_nb.track(mesh, to="wandb", folder=folder):
                1 / (not fails)
        except ZeroDivisionError:
            assert fails
        (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
        exits = [r.exit.exit_code for r in records_of(file.read_bytes()) if r.HasField("exit")]
        assert exits == [int(fails)]


def test_runs_of_wandb_are_each_by_itself_and_a_finished_one_stays_so(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb isn't installed")
    with monarch_nb.track(mesh, to="wandb", folder=tmp_path) as first:
        with monarch_nb.track(mesh, to="wandb", folder=tmp_path) as second:
            assert first.where != second.where
    with pytest.raises(DeviceMeshError):
        mesh.part([0]).execute(os._exit, 3).get(60)
    mesh.heal()
    with pytest.raises(ActorError, match="this run is finished"):
        first.log({"x": 1}, 0)
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2, "it was begun again by the heal"


def test_a_script_logs_to_it(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard isn't installed")
    script = tmp_path / "train.py"
    script.write_text("from monarch_nb.tracking import log\nlog({'score': 1.5}, 0)\n")
    with monarch_nb.track(mesh, folder=tmp_path):
        mesh.run_script(script)
    with pytest.raises(ActorError, match="this run is finished"):
        mesh.run_script(script, quiet=True)


def test_a_run_goes_on_when_its_rank_was_healed(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard isn't installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = monarch_nb.track(mesh, folder=tmp_path)
    run.log({"x": 1}, 0)
    with pytest.raises(DeviceMeshError):
        mesh.part([0]).execute(os._exit, 3).get(60)
    mesh.heal()
    run.log({"x": 2}, 1)
    run.finish()
    events = EventAccumulator(run.where)
    events.Reload()
    assert [e.value for e in events.Scalars("x")][-1] == 2.0


def test_facts_are_recorded(mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch_nb.tracking.facts import facts_of

    monkeypatch.chdir(tmp_path)
    assert "commit" not in facts_of(mesh)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    found = facts_of(mesh)
    assert len(str(found["commit"])) == 40 and found["environment"] == mesh.status().environment != ""
    assert (found["name"], found["num_ranks"], found["size_gpus"], found["num_hosts"]) == ("tracked", 2, 2, 1)


def test_bad_input_is_named(mesh: Mesh, tmp_path: Path) -> None:
    with pytest.raises(MeshUsageError, match="to is one of tensorboard, wandb, mlflow; not 'excel'"):
        monarch_nb.track(mesh, to="excel")
    begins_once = "track begins a run, once, in the notebook"
    with pytest.raises(MeshUsageError, match=begins_once):
        monarch_nb.track("loss")  # type: ignore[arg-type]
    with pytest.raises(ActorError, match=begins_once):
        mesh.execute(monarch_nb.track).get()
    pytest.importorskip("tensorboard", reason="tensorboard isn't installed")
    with monarch_nb.track(mesh, folder=tmp_path) as run:
        with pytest.raises(MeshUsageError, match="log: loss is a list, not a number"):
            run.log({"loss": [1, 2]}, 0)
        with pytest.raises(MeshUsageError, match="a step is a whole number, not '3'"):
            run.log({"loss": 1.0}, "3")  # type: ignore[arg-type]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine at which nobody listens: bound, so that nobody else takes it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_server_that_does_not_answer_is_told_at_once(mesh: Mesh, closed_port: int) -> None:
    pytest.importorskip("mlflow", reason="mlflow isn't installed")
    address = f"http://127.0.0.1:{closed_port}"
    for _ in range(2):
        with pytest.raises(
            MeshError, match=rf"^track: mlflow refuses a run: .*{address} \(.*refused\)\. Check"
        ):
            monarch_nb.track(mesh, to="mlflow", folder=address)
        mesh.run("rank", quiet=True)


def test_a_server_of_wandb_that_does_not_answer_is_told_at_once(closed_port: int) -> None:
    pytest.importorskip("wandb", reason="wandb isn't installed")
    env = {
        "WANDB_BASE_URL": f"http://127.0.0.1:{closed_port}",
        "WANDB_API_KEY": "x" * 40,
        "WANDB_MODE": "online",
    }
    with own_mesh("refused", {"gpus": 1}, env=env) as mesh:
        with pytest.raises(
            MeshError, match=r"^track: wandb refuses a run: .*refused\)\. Check WANDB_BASE_URL"
        ):
            monarch_nb.track(mesh, to="wandb")
        mesh.run("rank", quiet=True)


def test_a_folder_that_cant_be_written_is_told(mesh: Mesh, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard isn't installed")
    (tmp_path / "file").touch()
    with pytest.raises(MeshError, match=r"^track: tensorboard refuses a run: \w+Error: .*folder= says where"):
        monarch_nb.track(mesh, folder=tmp_path / "file")
    mesh.run("rank", quiet=True)


def test_a_tracker_that_is_not_installed_is_named(mesh: Mesh) -> None:
    for name in ("wandb", "mlflow", "tensorboard"):
        try:
            __import__(name)
        except ImportError:
            with pytest.raises(MeshUsageError, match=f"track: {name} isn't installed where the ranks run"):
                monarch_nb.track(mesh, to=name)
