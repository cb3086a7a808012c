"""Hosts: jobs, workers started by hand, keys."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from processes import wait_for_exit

from monarch_nb._client import session
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Tickets
from monarch_nb._wire import message as wire
from monarch_nb._wire.keys import KeyPair
from monarch_nb.actor import attach_to_workers
from monarch_nb.actor.workers import key_file
from monarch_nb.exceptions import MeshError, MeshStartError
from monarch_nb.job import LocalJob, ProcessJob

T = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_jobs_name_their_host_meshes() -> None:
    with ProcessJob({"trainers": 1, "loaders": 2}) as state:
        assert state.loaders.sizes == {"hosts": 2}
        procs = state.loaders.spawn_procs({"gpus": 1})
        assert procs.sizes == {"hosts": 2, "gpus": 1}
        assert len(set(procs.execute(os.getppid).get(T).values())) == 2
        with pytest.raises(AttributeError, match="no host mesh 'hosts'; it has: trainers, loaders"):
            state.hosts
    assert LocalJob().state().hosts.sizes == {}


@pytest.mark.parametrize("meshes", [{"a b": 1}, {"a": 0}, {"a": True}, "hosts", {"a": 1.5}])
def test_jobs_check_their_arguments(meshes: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"not|identifier"):
        ProcessJob(meshes)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["with ranks", "not yet joined"])
def test_hosts_have_gone_when_their_shutdown_is_done(when: str) -> None:
    job = ProcessJob({"hosts": 2})
    hosts = job.state().hosts
    pids = (
        list(hosts.spawn_procs({"gpus": 2}).execute(os.getpid).get(T).values())
        if when == "with ranks"
        else []
    )
    hosts.shutdown().get(T)
    assert [process.poll() for process in job._processes] == [0, 0]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(RuntimeError, match="have already been shut down"):
        job.state()
    job.kill()


def test_a_host_that_does_not_go_is_named_and_one_that_is_killed_meanwhile_has_gone() -> None:
    job = ProcessJob({"hosts": 2})
    hosts = job.state().hosts
    hosts.initialized.get(T)
    frozen = job._processes[1]
    frozen.send_signal(signal.SIGSTOP)
    problem = f"told to end, and not gone within 10 s: hosts1 (pid {frozen.pid})"
    with pytest.raises(MeshError, match=re.escape(problem)):
        hosts.shutdown().get(T)
    assert job._processes[0].poll() == 0
    frozen.kill()
    job.kill()

    job = ProcessJob({"hosts": 1})
    hosts = job.state().hosts
    hosts.initialized.get(T)
    job._processes[0].send_signal(signal.SIGSTOP)
    done = hosts.shutdown()
    job._processes[0].kill()
    done.get(T)
    job.kill()


def test_the_controller_has_gone_when_its_shutdown_is_done(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nfrom monarch_nb.actor import this_host\nfrom monarch_nb._client import session\n"
        "hosts = this_host()\npid = session.current().connection.pid\nrank = "
        "hosts.spawn_procs({'gpus': 1}).execute(os.getpid).get(60).item()\nhosts.shutdown().get(60)\n"
        "print([os.path.exists(f'/proc/{p}/exe') for p in (pid, rank)], "
        "this_host().spawn_procs().execute(str).get(60).item())\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=T * 2, check=False
    )
    assert (done.stdout, done.stderr) == ("[False, False] \n", "")


def test_a_killed_host_process_is_noticed_and_its_ranks_go() -> None:
    job = ProcessJob({"hosts": 2})
    procs = job.state().hosts.spawn_procs({"gpus": 1})
    pids = list(procs.execute(os.getpid).get(T).values())
    job._processes[1].kill()
    assert wait_for_exit(pids[1])
    error = procs.execute(os.getpid).exception(T)
    assert "is gone: its connection has ended" in str(error)
    assert list(procs.slice(hosts=0).execute(os.getpid).get(T).values()) == [pids[0]]
    job.kill()


def test_strangers_get_no_byte_through() -> None:
    job = ProcessJob({"hosts": 1})
    job.state().hosts.initialized.get(T)
    ticket = session.current().request(Tickets(1))[0]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    keys = KeyPair.new()
    stranger.curve_serverkey = ticket.controller_key.encode()
    stranger.curve_publickey, stranger.curve_secretkey = keys.public.encode(), keys.secret.encode()
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    stranger.connect(ticket.controller)
    stranger.send(wire.pack(wire.CONTROL, src=1 << 32, dst=0, name=b"shut_down"))
    assert monitor.poll(10_000), "the controller let a stranger in"
    stranger.disable_monitor()
    monitor.close(0)
    stranger.close(0)
    context.term()
    assert session.current().request(Status()).pid
    job.kill()


def test_workers_started_by_hand(tmp_path: Path) -> None:
    key, address = str(tmp_path / "key"), f"tcp://127.0.0.1:{free_port()}"
    key_file(key)
    assert os.stat(key).st_mode & 0o777 == 0o600
    code = f"from monarch_nb.actor import run_worker_loop_forever as f; f({address!r}, ca={key!r})"
    worker = subprocess.Popen([sys.executable, "-c", code])
    try:
        hosts = attach_to_workers(ca=key, workers=[address])
        procs = hosts.spawn_procs({"gpus": 2})
        assert procs.sizes == {"hosts": 1, "gpus": 2}
        assert procs.execute(lambda: 5).get(T).reduce("equal") == 5
        procs.stop().get(T)
    finally:
        worker.terminate()
        worker.wait(T)


def test_key_files_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key_file(str(path))
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        key_file(str(path))


def test_a_worker_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("monarch_nb.actor.workers.ATTACH_S", 0.2)
    with pytest.raises(MeshStartError, match=r"no worker answers at tcp://127\.0\.0\.1:"):
        attach_to_workers(ca=str(tmp_path / "key"), workers=[f"tcp://127.0.0.1:{free_port()}"])
    with pytest.raises(ValueError, match="looks like tcp://"):
        attach_to_workers(ca=str(tmp_path / "key"), workers=["10.0.0.5"])
