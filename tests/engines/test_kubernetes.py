"""Meshes on a real Kubernetes API server, its controllers and its scheduler; see `kube`."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import kube
import pytest
from kube import IMAGE, MISSING_IMAGE, PYTHON, Kube
from processes import wait_for_exit
from sshd import Profiles
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb.exceptions import MeshError, MeshStartError, MeshUsageError
from monarch_nb.job import KubernetesJob, job_loads, joining
from monarch_nb.job.allocation import Allocation, Plan, list_records, read_record
from monarch_nb.job.engines import ENGINES, EngineError, State, engine_of
from monarch_nb.job.engines import kubernetes_manifest as manifest
from monarch_nb.job.engines.kubernetes import Kubernetes
from monarch_nb.job.profiles import find_profile
from monarch_nb.job.spec import HostRange
from monarch_nb.mesh import Mesh, on_engine

T = 60
ONE_RANK = Plan((("procs", 1),))


@pytest.fixture
def lab(server: Kube, profiles: Profiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KUBECONFIG", str(server.config))
    head = f'engine = "kubernetes"\npython = "{PYTHON}"\n'

    def profile(name: str, general: str = "", own: str = "", image: str = IMAGE) -> str:
        return f'[{name}]\n{head}{general}\n[{name}.kubernetes]\nimage = "{image}"\n{own}\n'

    profiles(
        profile("two", "hosts = 2\ngpus = 1\ntime = '1h'")
        + profile("spread", 'hosts = "1..5"')
        + profile("many", "hosts = 9")
        + profile("gpus", "gpus = 8")
        + profile("odd", "hosts = 2", 'node_selector = "pool=odd"')
        + profile("grows", "hosts = 9", "autoscale = true")
        + profile("setup", 'setup = ["echo no module cuda >&2; false"]')
        + profile("broken").replace(PYTHON, "/none/python")
        + profile("missing", image=MISSING_IMAGE)
        + profile("space", own='namespace = "limited"')
        + profile("context", own='context = "lob"')
        + profile("size", own='memory = "much"')
        + profile("forbidden", own=f'kubeconfig = "{server.user_config}"')
    )
    current = sessions._current
    yield
    sessions._current = current
    assert list_records() == []
    wait_until(lambda: not server.names("jobs"), "no jobs of ours")
    wait_until(lambda: not server.names("pods"), "no pods of ours")
    assert server.names("secrets") == []


def start(name: str, profile: str, **options: object) -> Mesh:
    return on_engine.start_on(name, find_profile(profile, ENGINES), ONE_RANK, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("lab")
def test_a_mesh_is_a_job_whose_pods_end_with_it(server: Kube) -> None:
    message: list[str] = []
    mesh = start("My_mesh", "two", on_wait=message.append)
    try:
        assert mesh.sizes == {"hosts": 2, "procs": 1} and len(mesh.execute(os.getpid).get(T)) == 2
        asked = read_record("My_mesh")
        assert asked is not None and [asked.id] == server.names("jobs") == server.names("secrets")
        assert asked.id.startswith("mnb-my-mesh-"), "people find it by the mesh's name"
        look = engine_of(asked.spec).look(asked)
        assert look.state == State.GRANTED and len(set(look.nodes)) == 2, "a node for each host"
        assert look.ends_at is not None and 0 < look.ends_at - asked.submitted_at <= 3700
        with pytest.raises(EngineError, match="can't extend the time of a running pod"):
            on_engine.extend("My_mesh", 60.0)
        pids = [host.pid for host in mesh.status().hosts if host.index]
        secret = server.ask("GET", f"/api/v1/namespaces/default/secrets/{asked.id}")
        assert secret["metadata"]["ownerReferences"][0]["name"] == asked.id, "it goes with its job"
        mesh.stop().get(T)
        assert all(wait_for_exit(pid) for pid in pids)
        wait_until(lambda: engine_of(asked.spec).look(asked).state == State.ENDED, "a job that is complete")
    finally:
        on_engine.cancel("My_mesh")
    assert engine_of(asked.spec).look(asked).state == State.ENDED


@pytest.mark.usefixtures("lab")
def test_fewer_hosts_than_there_could_be_are_taken() -> None:
    mesh = start("some", "spread")
    sizes = mesh.sizes
    on_engine.cancel("some")
    assert sizes == {"hosts": 3, "procs": 1}


@pytest.mark.usefixtures("lab")
def test_a_request_waits_with_the_schedulers_words(server: Kube) -> None:
    message: list[str] = []

    def interrupt(text: str) -> None:
        message.append(text)
        if "nodes are available" in text:
            raise KeyboardInterrupt

    with pytest.raises(
        on_engine.MeshQueued, match=r"kubernetes job mnb-later-\w+ on grows stays in the queue"
    ):
        start("later", "grows", on_wait=interrupt)
    assert "(0/3 nodes are available: 3 node(s) didn't match pod" in message[-1] and "9 hosts" in message[-1]
    ((asked, look),) = on_engine.looks()
    assert look.state == State.QUEUED and "0/3 nodes" in look.reason and not look.trouble
    on_engine.cancel("later")
    assert engine_of(asked.spec).look(asked).state == State.ENDED


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("many", r"9 hosts were asked for, and 3 of the cluster's 3 nodes would do\. .* autoscale = true"),
        ("gpus", "1 hosts were asked for, and 0 of the cluster's 3 nodes with 8 GPUs would do"),
        ("odd", "2 hosts were asked for, and 1 of the cluster's 3 nodes and pool=odd would do"),
        ("context", r"there is no context 'lob'\. Did you mean lab\? Known: lab: context = "),
        ("size", "memory = 'much': expected a quantity as in 8, 500m or 64Gi"),
        (
            "forbidden",
            "you may not create jobs and delete jobs and create secrets and list pods in namespace",
        ),
        ("kubernetes", "Kubernetes needs an image that has monarch_nb: image = "),
    ],
)
def test_what_cannot_be_had_is_said_before_it_is_asked_for(profile: str, message: str) -> None:
    with pytest.raises(MeshUsageError, match=message):
        start("gone", profile)


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("broken", r"node k\d: .*/none/python: not found"),
        ("setup", r"node k\d: no module cuda"),
        (
            "missing",
            r"would wait for ever \(ErrImagePull: manifest for nowhere/missing:1 not found\): image =",
        ),
        ("space", r"would wait for ever \(.*exceeded quota: none.*\): Kubernetes creates no pods"),
    ],
)
def test_hosts_that_do_not_come_are_said(
    server: Kube, profile: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "STUCK_S", 0.0)
    if profile == "space":
        server.make_namespace("limited")
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        server.ask("POST", "/api/v1/namespaces/limited/resourcequotas", quota)
        path = "/api/v1/namespaces/limited/resourcequotas/none"
        wait_until(lambda: "hard" in server.ask("GET", path).get("status", {}), "a quota that counts")
    with pytest.raises(MeshStartError, match=message):
        start("gone", profile)


@pytest.mark.usefixtures("lab")
def test_no_server_no_login_no_file_are_sentences(
    server: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "conf"
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for token, at, message in (
        ("nobody", "", r"https://127\.0\.0\.1:\d+ doesn't know you \(Unauthorized\): log in again"),
        ("nobody", "https://127.0.0.1:1", r"no Kubernetes answers at https://127\.0\.0\.1:1 \(.*refused"),
    ):
        server.write_config(path, token, at)
        with pytest.raises(MeshUsageError, match=message):
            start("gone", "two")
    path.write_text("nonsense: [")
    with pytest.raises(MeshUsageError, match=r"the kubeconfig .*conf can't be used: "):
        start("gone", "two")
    path.unlink()
    with pytest.raises(MeshUsageError, match="there is no kubeconfig, and this isn't a pod"):
        start("gone", "two")


@pytest.mark.usefixtures("lab")
def test_what_was_asked_for_is_found_without_its_number(server: Kube) -> None:
    """As when we end before the server's answer has come: the record has no job yet."""
    spec = replace(find_profile("two", ENGINES).spec, hosts=HostRange(3, 3))
    asked = Allocation.new("lost", "two", spec, ONE_RANK)
    engine = Kubernetes()
    made = engine._made(engine._api(spec), manifest.job(asked))
    again = engine._made(engine._api(spec), manifest.job(asked))
    assert made.metadata.uid == again.metadata.uid, "asked for twice, had once"
    on_engine.records.write_record(asked)
    on_engine.cancel("lost")
    wait_until(lambda: not server.names("jobs"), "no jobs of ours")
    engine.end_allocation(asked)


@pytest.mark.usefixtures("lab")
def test_a_dead_controllers_job_is_given_back_and_a_dead_pod_is_known(server: Kube) -> None:
    mesh = start("left", "two")
    os.kill(mesh.status().pid, signal.SIGKILL)
    wait_until(lambda: not on_engine.launch.list_connections(), "a mesh that is gone")
    again = start("left", "two")
    try:
        asked = read_record("left")
        assert asked is not None and again.sizes == {"hosts": 2, "procs": 1}
        wait_until(lambda: server.names("jobs") == [asked.id], "one job only")
        pod = server.names("pods")[0]
        server.ask("DELETE", f"/api/v1/namespaces/default/pods/{pod}")
        with pytest.raises(MeshError):
            call_until_lost(again)
    finally:
        on_engine.cancel("left")


def call_until_lost(mesh: Mesh) -> None:
    """Call a mesh that has just lost a host until that's known."""
    while True:
        mesh.execute(os.getpid).get(T)


def test_a_kubernetes_job_gives_pods_by_name(server: Kube) -> None:
    job = KubernetesJob({"trainers": 1}, image=IMAGE, kubeconfig=str(server.config), python_exe=PYTHON)
    assert job.can_run(KubernetesJob({"trainers": 2}, image=IMAGE)) == (
        f"hosts 1 -> 2, python {PYTHON} -> python3, own "
        f"image={IMAGE},kubeconfig={server.config} -> image={IMAGE}"
    )
    job = job_loads(job.dumps())
    try:
        procs = job.state().trainers.spawn_procs({"procs": 1})
        assert len(procs.execute(os.getpid).get(T)) == 1 and len(list_records()) == 1
    finally:
        job.kill()
    assert list_records() == []


@pytest.mark.skipif(not kube.HAS_CLIENT, reason="no client: pip install kubernetes")
def test_what_would_be_submitted_can_be_read(profiles: Profiles) -> None:
    profiles(
        '[lab]\nengine = "kubernetes"\nhosts = 4\ngpus = 8\n[lab.kubernetes]\nimage = "a/b:1"\nshm = "8Gi"\n'
        'memory = "64Gi"\nqueue = "team"\ntolerate = "nvidia.com/gpu"\npriority = "high"\n'
    )
    spec = find_profile("lab", ENGINES).spec
    text = engine_of(spec).script(Allocation.new("big", "lab", spec, Plan()))
    found = json.loads(text[: text.rindex("}") + 1])
    pod = found["spec"]["template"]["spec"]
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert found["spec"]["completions"] == 4 and pod["priorityClassName"] == "high"
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": "8"}
    assert "secret" in text and "guest" not in text, "what lets hosts in isn't shown"


def test_without_the_client_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MeshUsageError, match=r"pip install 'monarch_nb\[kubernetes\]'"):
        start("gone", "kubernetes")
