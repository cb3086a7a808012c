"""Meshes that grow, shrink and heal by themselves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from faults import kill
from sample_actors import Counter

from monarch_nb._client import session as sessions
from monarch_nb._protocol.programs import Status
from monarch_nb.actor import HostMesh, MeshFailure, ProcMesh, this_host
from monarch_nb.actor.handle import placement_of
from monarch_nb.exceptions import HealError, SupervisionError
from monarch_nb.job import ProcessJob
from monarch_nb.mesh import start
from monarch_nb.spmd import setup_torch_elastic_env

PRELOAD = "none"
T = 60


@pytest.fixture
def line() -> Iterator[ProcMesh]:
    """Three ranks in a line."""
    mesh = this_host().spawn_procs({"gpus": 3})
    mesh.initialized.get(T)
    yield mesh
    mesh.stop(grace_s=0.0).get(T)


pytestmark = pytest.mark.usefixtures("unhandled")


def numbers() -> tuple[str, str, str]:
    return os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]


def wait_for(notices: list[Any]) -> Any:
    """Return the first notice once there is one; each look is a round trip."""
    while not notices:
        sessions.current().request(Status())
    return notices.pop(0)


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    heard: list[Any] = []
    monkeypatch.setattr(sessions, "_show_notice", heard.append)
    return heard


def test_a_line_grows_and_shrinks(line: ProcMesh) -> None:
    setup_torch_elastic_env(line)
    counter = line.spawn("counter", Counter, 7)
    counter.increment.call().get(T)
    before, part = placement_of(line), line.slice(gpus=slice(0, 2))
    report = line.resize(gpus=5)
    assert placement_of(line).procs[:3] == before.procs == placement_of(part).all_procs
    assert len(placement_of(line).procs) == len(placement_of(counter).procs) == 5
    assert (report.ranks, report.actors) == ((3, 4), {"counter": (3, 4)})
    assert dict(line.sizes) == {"gpus": 5}
    assert list(counter.increment.call().get(T).values()) == [9, 9, 9, 8, 8]
    assert list(line.execute(numbers).get(T).values()) == [(str(r), str(r), "5") for r in range(5)]
    line.resize(gpus=2)
    assert list(counter.increment.call().get(T).values()) == [10, 10]
    assert list(line.execute(numbers).get(T).values()) == [("0", "0", "2"), ("1", "1", "2")]
    assert line.healthy()


def test_inner_dimensions_and_hosts_grow_too() -> None:
    job = ProcessJob({"hosts": 2})
    hosts: HostMesh = job.state().hosts
    mesh = hosts.spawn_procs({"gpus": 2})
    counter = mesh.spawn("counter", Counter, 0)
    counter.slice(hosts=1, gpus=1).increment.call_one(5).get(T)
    where = list(mesh.execute(os.getppid).get(T).values())
    mesh.resize(hosts=3, gpus=3)
    assert dict(mesh.sizes) == {"hosts": 3, "gpus": 3}
    assert list(counter.get.call().get(T).values()) == [0, 0, 0, 0, 5, 0, 0, 0, 0]
    now = list(mesh.execute(os.getppid).get(T).values())
    assert now[0:3] == [where[0]] * 3 and now[3:6] == [where[2]] * 3
    assert now[6:9] == [now[6]] * 3 and now[6] not in where
    mesh.resize(hosts=1, gpus=2)
    assert list(counter.get.call().get(T).values()) == [0, 0]
    mesh.stop().get(T)
    hosts.shutdown().get(T)
    job.kill()


def test_shrink_leaves_out_what_is_lost(line: ProcMesh) -> None:
    counter = line.spawn("counter", Counter, 0)
    for rank in range(3):
        counter.slice(gpus=rank).increment.call_one(rank).get(T)
    kill(line, 1)
    report = line.shrink()
    assert "the mesh is now" in report.messages[-1]
    assert list(counter.get.call().get(T).values()) == [0, 2]
    assert line.healthy()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"gpu": 3}, "there is no dimension 'gpu'; the mesh has gpus"),
        ({"gpus": 0}, "a dimension has a size of at least 1, not gpus=0"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(line: ProcMesh, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(HealError, match=message):
        line.resize(**sizes)
    assert len(line.execute(os.getpid).get(T)) == 3


def test_healing_by_itself_with_a_budget(line: ProcMesh, notices: list[Any]) -> None:
    counter = line.spawn("counter", Counter, 0)
    line.on_failure("heal", max_restarts=1)
    kill(line, 2)
    assert wait_for(notices).ranks == [2]
    assert list(counter.increment.call().get(T).values()) == [1, 1, 1]
    kill(line, 0)
    assert "not healed: 1 heals in 600 s are the limit" in wait_for(notices)
    with pytest.raises(SupervisionError):
        counter.increment.call().get(T)
    line.heal()
    assert len(counter.increment.call().get(T)) == 3


def test_shrinking_by_itself(line: ProcMesh, notices: list[Any]) -> None:
    counter = line.spawn("counter", Counter, 0)
    line.on_failure("shrink")
    kill(line, 0)
    wait_for(notices)
    assert list(counter.increment.call().get(T).values()) == [1, 1]


def test_a_function_decides(line: ProcMesh) -> None:
    asked: list[MeshFailure] = []
    done = threading.Event()

    def decide(failure: MeshFailure) -> str:
        asked.append(failure)
        done.set()
        return "heal"

    line.on_failure(decide)
    (pid,) = kill(line, 1)
    assert done.wait(T)
    while not line.healthy():
        pass
    assert [f.pid for f in asked] == [pid]
    with pytest.raises(
        ValueError, match="on_failure takes 'stop', 'heal', 'shrink' or a function, not 'restart'"
    ):
        line.on_failure("restart")


def test_cells_of_a_rank_that_stays_know_the_new_hosts() -> None:
    mesh = start("resized", {"gpus": 1}, num_hosts=1)
    try:
        mesh.resize(hosts=2)
        mesh.run("found = mesh.host_mesh.sizes")
        assert list(mesh.pull("found").values()) == [{"hosts": 2}] * 2
    finally:
        mesh.stop().get(T)
