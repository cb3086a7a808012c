"""Meshes on a real Slurm: had, queued, cancelled, refused."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from slurmd import SETUP, Cluster
from sshd import Profiles
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import MeshError, MeshStartError, MeshUsageError
from monarch_nb.job.allocation import Plan, list_records, read_record
from monarch_nb.job.engines import ENGINES, State, engine_of
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import Mesh, on_engine

T = 60


@pytest.fixture
def lab(cluster: Cluster, profiles: Profiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    general = f'engine = "slurm"\nsetup = [{SETUP!r}]\n'
    profiles(
        f"[lab]\n{general}hosts = 2\ngpus = 2\n[all]\n{general}hosts = 3\n[many]\n{general}hosts = 9\n"
        f'[long]\n{general}time = "1h"\npartition = "short"\n[lap]\n{general}partition = "mian"\n'
        f'[spread]\n{general}hosts = "2..9"\n[wrong]\n{general}[wrong.slurm]\nnonsense = 1\n[broken]\n'
        f'{general}python = "/none/python"\n[never]\n{general}[never.slurm]\nconstraint = "unicorn"\n'
    )
    current = sessions._current
    yield
    sessions._current = current
    assert list_records() == []
    wait_until(lambda: cluster.idle_nodes() == 3, f"idle nodes: {cluster.command('squeue')}")


def start(
    name: str,
    profile: str,
    dims: dict[str, int] | None = None,
    *,
    idle_timeout_s: float = 600.0,
    **options: object,
) -> Mesh:
    plan = Plan(None if dims is None else tuple(dims.items()), idle_timeout_s=idle_timeout_s)
    return on_engine.start_on(name, find_profile(profile, ENGINES), plan, **options)  # type: ignore[arg-type]


def variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(("SLURM", "PMI", "CUDA"))}


@pytest.mark.usefixtures("lab")
def test_a_mesh_is_a_job(cluster: Cluster) -> None:
    message: list[str] = []
    mesh = start("big", "lab", on_wait=message.append)
    try:
        assert mesh.sizes == {"hosts": 2, "gpus": 2}, "a rank for each GPU that was given"
        assert [row.num_gpus for row in on_engine.host_rows(mesh)[1:]] == [2, 2]
        found = list(mesh.execute(variables).get(T).values())
        asked = read_record("big")
        assert asked is not None and {v["SLURM_JOB_ID"] for v in found} == {asked.id}
        assert not {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID"} & set(found[0]), (
            "ranks have numbers of their own"
        )
        assert [v["CUDA_VISIBLE_DEVICES"] for v in found] == ["0", "1", "0", "1"]
        (there,) = on_engine.looks()
        assert there[1].state == State.GRANTED and len(there[1].nodes) == 2
    finally:
        mesh.stop().get(T)
        on_engine.give_back("big")
    wait_until(
        lambda: asked is not None and engine_of(asked.spec).look(asked).state in (State.ENDED, State.LEAVING),
        "a job that has ended",
    )


@pytest.mark.usefixtures("lab")
def test_a_job_gets_more_time(cluster: Cluster) -> None:
    asked = on_engine.Allocation.new("more", "lab", find_profile("lab", ENGINES).spec, Plan())
    run = ("--time=10", "--output=/dev/null", "--wrap=sleep 600")
    asked = replace(asked, id=cluster.command("sbatch", "--parsable", *run))
    on_engine.records.write_record(asked)
    try:
        wait_until(lambda: engine_of(asked.spec).look(asked).state == State.GRANTED, "a job that runs")
        (line,) = on_engine.extend("more", 3600.0)
        assert ": granted, " in line and cluster.command("squeue", "-h", "-o", "%l") == "1:10:00"
        with pytest.raises(MeshUsageError, match="doesn't run on hosts of an engine"):
            on_engine.extend("none", 60.0)
    finally:
        on_engine.cancel("more")
    with pytest.raises(MeshError, match=rf"slurm job {asked.id} got no more time: .*"):
        engine_of(asked.spec).extend(asked, 60.0)


@pytest.mark.usefixtures("lab")
def test_an_idle_mesh_gives_its_nodes_back(cluster: Cluster) -> None:
    mesh = start("idle", "lab", {"procs": 1}, idle_timeout_s=1.0)
    asked = read_record("idle")
    assert asked is not None and cluster.idle_nodes() == 1
    session_of(mesh).close()
    wait_until(lambda: cluster.idle_nodes() == 3, f"idle nodes: {cluster.command('squeue')}")
    assert engine_of(asked.spec).look(asked).state == State.ENDED
    ((left, look),) = on_engine.looks()
    assert (left.mesh, look.state) == ("idle", State.ENDED), "it's listed once, and then forgotten"


@pytest.mark.usefixtures("lab")
def test_fewer_hosts_than_there_could_be_are_taken(cluster: Cluster) -> None:
    mesh = start("some", "spread", {"procs": 1})
    sizes = mesh.sizes
    on_engine.cancel("some")
    assert sizes == {"hosts": 3, "procs": 1}


@pytest.mark.usefixtures("lab")
def test_a_request_waits_in_the_queue_and_goes_on_there(cluster: Cluster, full: Callable[[], None]) -> None:
    message: list[str] = []

    def interrupt(text: str) -> None:
        message.append(text)
        if "queued" in text:
            threading.Timer(0, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(
        on_engine.MeshQueued,
        match=r"slurm job \d+ on all stays in the queue\. Wait on: %mesh start later; give up: %mesh cancel "
        r"later",
    ):
        start("later", "all", {"procs": 1}, on_wait=interrupt)
    assert (
        ("3 hosts" in message[-1] and "(Resources)" in message[-1])
        or "(Priority)" in message[-1]
        or "(None)" in message[-1]
    )
    ((asked, look),) = on_engine.looks()
    assert asked.mesh == "later" and look.state == State.QUEUED and on_engine.waits("later")
    full()
    mesh = on_engine.wait_on("later")
    assert mesh.sizes == {"hosts": 3, "procs": 1} and list(mesh.execute(os.getpid).get(T).values())
    on_engine.cancel("later")


@pytest.mark.usefixtures("lab")
def test_a_wait_that_is_over_cancels_the_request(cluster: Cluster, full: Callable[[], None]) -> None:
    with pytest.raises(
        MeshStartError, match=r"no hosts within 1 s; the request was cancelled\. Wait longer: --wait"
    ):
        start("soon", "all", wait_s=1.0, keeps_queued=False)
    assert "monarch-nb-soon" not in cluster.command("squeue", "-h", "-o", "%j")


@pytest.mark.usefixtures("lab")
def test_a_job_that_is_cancelled_from_outside_is_said(cluster: Cluster, full: Callable[[], None]) -> None:
    def end(text: str) -> None:
        if "queued" in text:
            cluster.command("scancel", "--name=monarch-nb-gone")

    with pytest.raises(MeshStartError, match=r"slurm job \d+ on all has ended: cancelled"):
        start("gone", "all", on_wait=end)


@pytest.mark.usefixtures("lab")
def test_a_launcher_that_cannot_start_is_quoted() -> None:
    with pytest.raises(MeshStartError, match="/none/python"):
        start("gone", "broken")


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("profile", "error", "message"),
    [
        ("many", MeshUsageError, "9 hosts were asked for, and the largest partition has 3"),
        ("long", MeshUsageError, r"--time 60 min is longer than partition short allows: 1 min"),
        ("lap", MeshUsageError, r"there is no partition 'mian'\. Did you mean main\?"),
        ("wrong", MeshError, "sbatch: .*nonsense"),
        ("never", MeshError, "sbatch: .*Invalid feature specification"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_sentence(profile: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        start("gone", profile)


@pytest.mark.usefixtures("lab")
def test_without_its_commands_it_says_what_to_type() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/none")
        with pytest.raises(MeshUsageError, match="there is no sbatch here: name a login node"):
            start("gone", "lab")


@pytest.mark.usefixtures("lab")
def test_a_dead_controllers_job_is_given_back(cluster: Cluster) -> None:
    mesh = start("left", "lab", {"procs": 1})
    os.kill(mesh.status().pid, signal.SIGKILL)
    wait_until(lambda: not on_engine.launch.list_connections(), "a mesh that is gone")
    again = start("left", "lab", {"procs": 1})
    asked = read_record("left")
    assert asked is not None and again.sizes == {"hosts": 2, "procs": 1}
    assert cluster.command("squeue", "-h", "-t", "RUNNING", "-o", "%i").split() == [asked.id]
    on_engine.cancel("left")


@pytest.mark.usefixtures("lab")
def test_what_would_be_submitted_can_be_read() -> None:
    found = find_profile("lab", ENGINES)
    spec = replace(found.spec, time_s=7200.0)
    text = engine_of(spec).script(on_engine.Allocation.new("big", "lab", spec, Plan()))
    assert (
        "#SBATCH --nodes=2\n" in text
        and "#SBATCH --gres=gpu:2\n" in text
        and "#SBATCH --time=120\n" in text
        and "secret" in text
    )
