"""Meshes that are up get more hosts of their engine, do with fewer, and have spares: on a real Slurm, a real
sshd and hosts that wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from slurmd import SETUP, Cluster
from sshd import Profiles, Sshd
from waiting import wait_until

from monarch_nb._client import session as sessions
from monarch_nb._protocol.programs import Cost
from monarch_nb.actor.handle import session_of
from monarch_nb.exceptions import HealError, MeshError, MeshUsageError
from monarch_nb.job.allocation import Allocation, Plan, list_records, read_record
from monarch_nb.job.engines import ENGINES, EngineError, State, engine_of
from monarch_nb.job.profiles import find_profile
from monarch_nb.mesh import Mesh, allocation_status, growing, on_engine

T = 60
ONE_RANK = Plan((("procs", 1),))


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    current = sessions._current
    yield
    sessions._current = current


@pytest.fixture
def lab(cluster: Cluster, profiles: Profiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    general = f'engine = "slurm"\nsetup = [{SETUP!r}]\n'
    profiles(
        f'[one]\n{general}hosts = 1\ngpus = 2\ntime = "1h"\nusd_per_gpu_hour = 1800\n'
        f"[two]\n{general}hosts = 2\ntime = '1h'\n"
    )
    yield cluster
    assert list_records() == []
    wait_until(lambda: cluster.idle_nodes() == 3, f"idle nodes: {cluster.command('squeue')}")


def start(name: str, profile: str, plan: Plan = ONE_RANK) -> Mesh:
    return on_engine.start_on(name, find_profile(profile, ENGINES), plan)


def jobs(cluster: Cluster) -> list[str]:
    return sorted(cluster.command("squeue", "-h", "-t", "RUNNING", "-o", "%D").split())


def node() -> str:
    return os.environ["SLURMD_NODENAME"]


def remember(value: int) -> None:
    os.environ["MNB_HELD"] = str(value)


def held() -> str:
    return os.environ.get("MNB_HELD", "nothing")


def record(name: str) -> Allocation:
    found = read_record(name)
    assert found is not None
    return found


def cost(mesh: Mesh) -> Cost:
    """Return what the hosts of a mesh have cost: each 1 $ a second."""
    found = mesh.status().cost
    assert found is not None and found.usd_per_hour == pytest.approx(found.num_gpus * 1800.0)
    return found


def test_a_mesh_gets_more_nodes_and_gives_them_back(lab: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_status, "LOOK_S", 0.5)
    mesh = start("big", "one")
    try:
        mesh.execute(remember, 7).get(T)
        first = mesh.status().ends_at
        assert first is not None and 3000 < first - time.time() <= 3600
        asked = record("big")
        assert cost(mesh).num_gpus == 2
        assert 0 <= cost(mesh).usd_until(time.time()) <= time.time() - asked.submitted_at
        assert f"left of {asked.described()}, 2 GPUs, about " in mesh.status().text()
        typed = [sys.executable, "-m", "monarch_nb", "extend", "big", "1h"]
        said = subprocess.run(typed, capture_output=True, text=True, check=True).stdout
        assert ": granted, " in said and (mesh.status().ends_at or 0) > first + 3000
        known = mesh.status().ends_at
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", "/none")  # no squeue: nobody can say now when the job ends
            allocation_status.tell_limit(session_of(mesh), record("big"))
        assert mesh.status().ends_at == known, "what was known holds on"
        # As an administrator does. Nobody asks the mesh: this program looks again.
        lab.command("scontrol", "update", f"JobId={asked.id}", "TimeLimit=20")
        wait_until(lambda: (mesh.status().ends_at or 0) - time.time() <= 1200, "a limit that was changed")
        before = cost(mesh)
        report = growing.grow(mesh, 2)
        assert mesh.sizes == {"hosts": 3, "procs": 1} and report.ranks == (1, 2), report
        assert cost(mesh).num_gpus == 6 and cost(mesh).usd >= before.usd
        nodes = list(mesh.execute(node).get(T).values())
        assert len(set(nodes)) == 3 and jobs(lab) == ["1", "2"], "a node is one host, not two"
        assert list(mesh.execute(held).get(T).values()) == ["7", "nothing", "nothing"]
        assert (
            len(record("big").requests)
            == 2
            == len(on_engine.looks())
            == len(on_engine.allocation_lines("big"))
        )
        with pytest.raises(EngineError, match=r"1 more hosts were asked for; the mesh has 3, and .* has 3"):
            growing.grow(mesh, 1)
        report = growing.shrink(mesh, 1)
        assert mesh.sizes == {"hosts": 2, "procs": 1} and f"host {nodes[2]} left the mesh" in report.messages
        wait_until(lambda: jobs(lab) == ["1", "1"], "a node that the job has no more")
        assert list(mesh.execute(node).get(T).values()) == nodes[:2]
        growing.grow(mesh, 1)
        report = growing.shrink(mesh, hosts=[nodes[0]])
        assert len(record("big").requests) == 2 and "was given back" in report.messages[-1], report
        report = growing.shrink(mesh, 1)
        wait_until(lambda: jobs(lab) == ["1"], "a job that has ended")
        assert mesh.sizes == {"hosts": 1, "procs": 1} and len(record("big").requests) == 1
        wait_until(lambda: cost(mesh).num_gpus == 2, "the price of one host")
        assert cost(mesh).usd > before.usd + 2, "what hosts have cost that were given back"
        (line,) = on_engine.allocation_lines("big")
        assert ", 2 GPUs, about " in line and line.endswith(" $ so far")
    finally:
        on_engine.cancel("big")


def test_the_hosts_that_a_mesh_began_with_may_leave(lab: Cluster) -> None:
    mesh = start("moved", "one")
    try:
        growing.grow(mesh)
        first, second = mesh.execute(node).get(T).values()
        growing.shrink(mesh, hosts=[first])
        assert list(mesh.execute(node).get(T).values()) == [second]
        look = engine_of(record("moved").spec).look(record("moved"))
        assert look.state == State.GRANTED and look.nodes == (second,) and record("moved").is_up
    finally:
        on_engine.cancel("moved")


def test_a_spare_takes_the_place_of_a_lost_node(lab: Cluster) -> None:
    plan = Plan((("procs", 1),), num_spares=1, on_failure="heal")
    mesh = start("safe", "two", plan)
    try:
        assert mesh.sizes == {"hosts": 2, "procs": 1}
        lost = mesh.status().hosts[2]
        os.kill(lost.pid, signal.SIGKILL)
        wait_until(lambda: _is_whole(mesh), "a mesh that is healed")
        assert lost.hostname not in mesh.execute(node).get(T).values()
        assert growing.give_back_idle(mesh) == []
    finally:
        on_engine.cancel("safe")


def test_a_cancelled_job_is_named_and_heal_asks_for_another(lab: Cluster) -> None:
    mesh = start("again", "two", Plan((("procs", 2),)))
    try:
        before = record("again").id
        waiting = mesh.execute(wait_for_ever)
        lab.command("scancel", before)
        with pytest.raises(
            MeshError, match=rf"slurm job {before}, which was cancelled( or whose time is up)?: host n"
        ):
            waiting.get(T)
        known, asked = mesh.status().ends_at, record("again")
        wait_until(lambda: engine_of(asked.spec).look(asked).state != State.GRANTED, "a job that has ended")
        allocation_status.tell_limit(session_of(mesh), asked)
        assert known is not None and mesh.status().ends_at == known, "what explains the end holds on"
        report = growing.heal(mesh)
        assert report.ranks == (0, 1, 2, 3) and len(report.hosts) == 2, report
        found = set(mesh.execute(job).get(T).values())
        assert {r.id for r in record("again").requests if r.id} == found and before not in found
    finally:
        on_engine.cancel("again")


def wait_for_ever() -> None:
    threading.Event().wait()  # which no signal ends, as signal.pause()


def job() -> str:
    return os.environ["SLURM_JOB_ID"]


def _is_whole(mesh: Mesh) -> bool:
    try:
        return len(set(mesh.execute(node).get(T).values())) == 2
    except MeshError:
        return False


@pytest.fixture
def logins(two_hosts: Sshd, profiles: Profiles) -> None:
    config = f'config = "{two_hosts.config}"\n'
    profiles(
        f'[lab]\nengine = "ssh"\nhosts = ["he[1-2]"]\n[lab.ssh]\n{config}'
        f'[one]\nengine = "ssh"\nhosts = ["he1"]\n[one.ssh]\n{config}'
    )


@pytest.mark.usefixtures("logins")
def test_hosts_are_named_and_spares_come_later() -> None:
    mesh = start("few", "one", Plan((("procs", 1),), on_failure="heal"))
    try:
        with pytest.raises(
            EngineError, match=r"of those that are named 0 are free. Name others: --hosts a,b"
        ):
            growing.grow(mesh, 1)
        growing.grow(mesh, 1, machines=["he2"], as_spares=True)
        assert mesh.sizes == {"hosts": 1, "procs": 1} and record("few").plan.num_spares == 1
        lost = mesh.status().hosts[1]
        os.kill(lost.pid, signal.SIGKILL)
        wait_until(lambda: _answers(mesh), "a mesh that is healed")
        assert [r.name for r in on_engine.host_rows(mesh) if r.ranks != "none"] == ["he1"], "its place's name"
    finally:
        on_engine.cancel("few")


def _answers(mesh: Mesh) -> bool:
    try:
        return mesh.execute(os.getpid).get(T) is not None
    except MeshError:
        return False


@pytest.mark.usefixtures("logins")
def test_what_cannot_be_had_changes_nothing() -> None:
    mesh = start("few", "one")
    try:
        with pytest.raises(MeshError, match="nowhere"):
            growing.grow(mesh, 1, machines=["nowhere.invalid"])
        with pytest.raises(MeshUsageError, match="has no dimension 'gpu'; expected hosts or procs"):
            growing.grow(mesh, 1, dim="gpu")
        with pytest.raises(MeshUsageError, match="has hosts=1: 1 fewer would leave nothing"):
            growing.shrink(mesh, 1)
        with pytest.raises(MeshUsageError, match="has no ranks on a host 'he9'; expected one of 1, he1"):
            growing.shrink(mesh, hosts=["he9"])
        with pytest.raises(HealError, match="no host would be left"):
            growing.shrink(mesh, hosts=["1"])
        assert len(record("few").requests) == 1 and mesh.sizes == {"hosts": 1, "procs": 1}
        assert growing.grow(mesh, 1, dim="procs").ranks == (1,) and mesh.sizes == {"hosts": 1, "procs": 2}
    finally:
        on_engine.cancel("few")
