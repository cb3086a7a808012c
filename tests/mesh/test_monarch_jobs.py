"""What a Monarch program does with jobs and the host meshes that they give."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_for_exit

from monarch_nb.actor import Actor, HostMesh, endpoint, hosts_from_config, this_host
from monarch_nb.job import LocalJob, ProcessJob, job_load, job_loads
from monarch_nb.rdma import RDMAAction

PRELOAD = "none"
T = 60


class Probe(Actor):
    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def shut_down(self, hosts: HostMesh) -> None:
        hosts.shutdown().get(T)

    @endpoint
    def interpreter_of_a_child(self) -> str:
        procs = this_host().spawn_procs({"gpus": 1})
        try:
            return procs.execute(_interpreter).get(T).item()
        finally:
            procs.stop().get(T)


def _interpreter() -> str:
    return sys.executable


@pytest.fixture(scope="module")
def job() -> Iterator[ProcessJob]:
    found = ProcessJob({"hosts": 1}, env={"FROM_THE_JOB": "yes"})
    yield found
    found.kill()


def test_a_job_asked_twice_gives_hosts_that_are_stopped_apart(job: ProcessJob) -> None:
    first, second = job.state(cached_path=None).hosts, job.state(cached_path=None).hosts
    of_first, of_second = (hosts.spawn_procs({"gpus": 1}) for hosts in (first, second))
    probe = of_second.spawn("probe", Probe)
    assert probe.variable.call_one("FROM_THE_JOB").get(T) == "yes"
    assert of_first.execute(os.getpid).get(T)
    first.stop().get(T)
    assert probe.variable.call_one("FROM_THE_JOB").get(T) == "yes", (
        "stopping one handle's processes has ended the other's"
    )
    second.stop().get(T)


def test_an_actor_may_not_shut_down_hosts_that_it_was_given(job: ProcessJob) -> None:
    hosts = job.state().hosts
    probe = hosts.spawn_procs({"gpus": 1}).spawn("probe", Probe)
    error = probe.shut_down.call_one(hosts).exception(T)
    assert isinstance(error, Exception)
    assert "RuntimeError: cannot shut down a HostMesh that is a reference" in str(error)
    assert probe.variable.call_one("FROM_THE_JOB").get(T) == "yes"
    hosts.stop().get(T)


def test_hosts_that_were_shut_down_say_so() -> None:
    with ProcessJob({"hosts": 1}) as state:
        part = state.hosts.slice(hosts=slice(0, 1))
        state.hosts.shutdown().get(T)
        for use in (state.hosts.spawn_procs, state.hosts.shutdown, part.spawn_procs, state.hosts.stop):
            with pytest.raises(RuntimeError, match="already been shut down"):
                use()


def test_a_process_job_refuses_an_environment_that_is_none() -> None:
    with pytest.raises(TypeError, match="env maps str to str; got 'A': 1"):
        ProcessJob({"hosts": 1}, env={"A": 1})  # type: ignore[dict-item]


def test_a_job_is_written_down_and_loaded(tmp_path: Path) -> None:
    job = ProcessJob({"trainers": 2}, env={"A": "1"})
    job.dump(tmp_path / "deep" / "job.pkl")
    loaded = job_load(tmp_path / "deep" / "job.pkl")
    assert isinstance(loaded, ProcessJob)
    assert (loaded.meshes, loaded.env, loaded.active) == ({"trainers": 2}, {"A": "1"}, False)
    assert isinstance(job_loads(LocalJob(["a"]).dumps()), LocalJob)
    assert json.loads((tmp_path / "deep" / "job.pkl").read_text())["job"] == "ProcessJob"
    with pytest.raises(TypeError, match="takes what a job's dumps"):
        job_loads(b"no job")
    odd = LocalJob()
    odd.hosts = (object(),)  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"LocalJob can't be written .* hosts is a tuple .*; expected text"):
        odd.dumps()


class Trap:
    """What makes a file where it's unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_file_of_a_job_runs_nothing_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job_state.json"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(TypeError, match=rf"{path}: job_loads takes .*"):
        job_load(path)
    assert not (tmp_path / "ran").exists()
    path.write_text(json.dumps({"version": 1, "job": "os.system", "fields": {"command": "true"}}))
    with pytest.raises(TypeError, match=r"no class 'os\.system' of jobs; import os first"):
        job_load(path)
    path.write_text(json.dumps({"version": 1, "job": "ProcessJob", "fields": {"meshes": 3}}))
    with pytest.raises(TypeError, match="number of hosts by mesh name"):
        job_load(path)


def test_an_interpreter_is_inherited_by_what_is_spawned_by_what_it_runs(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    procs = this_host().with_python_executable(str(link)).spawn_procs({"gpus": 1})
    try:
        probe = procs.spawn("probe", Probe)
        assert procs.execute(_interpreter).get(T).item() == str(link)
        assert probe.interpreter_of_a_child.call_one().get(T) == str(link)
    finally:
        procs.stop().get(T)


def test_an_action_without_transfers_has_nothing_to_do() -> None:
    assert RDMAAction().submit().get(T).num_bytes == 0


FROM_CONFIG = """
import os
from monarch_nb.actor import hosts_from_config

hosts = hosts_from_config("training")
procs = hosts.spawn_procs({"gpus": 2})
places = list(procs.execute(lambda: (os.getppid(), os.getpid())).get(60).items())
print([dict(point) for point, _ in places] == [dict(hosts=h, gpus=g) for h in range(2) for g in range(2)])
print(*sorted({pid for _, pids in places for pid in pids}))
"""


def test_hosts_from_config_are_two_that_end_with_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", FROM_CONFIG], capture_output=True, text=True, check=True)
    as_monarchs, pids = done.stdout.splitlines()
    assert as_monarchs == "True"
    assert len(pids.split()) == 6  # two host processes, and two ranks of each
    for pid in pids.split():
        assert wait_for_exit(int(pid))


def test_hosts_from_config_can_be_shut_down() -> None:
    hosts = hosts_from_config("training")
    procs = hosts.spawn_procs({"gpus": 1})
    pids = [pid for pair in procs.execute(_host_and_rank).get(T).values() for pid in pair]
    hosts.shutdown().get(T)
    assert len(set(pids)) == 4
    for pid in pids:
        assert wait_for_exit(pid)


def _host_and_rank() -> tuple[int, int]:
    return os.getppid(), os.getpid()
