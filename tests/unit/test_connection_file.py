"""Connection files: junk is survived, and a pid that another process has by now names nobody."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb._client import connection_file, launch
from monarch_nb._protocol.claims import ClaimNote
from monarch_nb._wire import message as wire
from monarch_nb._wire.claim import Claim
from monarch_nb._wire.process import machine_id, start_time
from monarch_nb.exceptions import MeshNotFound


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "runtime"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(path))
    assert launch.runtime_directory() == str(path)
    return path


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def write(runtime: Path, name: str, **fields: Any) -> Path:
    path = runtime / f"monarch_nb-{name}.json"
    content = {
        "name": name,
        "pid": os.getpid(),
        "directory": str(runtime),
        "wire_version": wire.VERSION,
        "machine": machine_id(),
    }
    path.write_text(json.dumps({**content, "start_time": start_time(os.getpid()), **fields}))
    return path


def listen() -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.bind("p0")  # pytest's paths are too long for a socket
    found.listen()
    return found


def names() -> list[str]:
    return [c.name for c in launch.list_connections()]


def test_one_that_runs_is_found(runtime: Path) -> None:
    write(runtime, "runs")
    (runtime / "p0").touch()
    (found,) = launch.list_connections()
    assert (found.name, found.pid, found.trouble) == ("runs", os.getpid(), "")


def test_a_pid_that_another_process_has_by_now_names_nobody(
    runtime: Path, innocent: subprocess.Popen[bytes]
) -> None:
    (runtime / "p0").touch()
    before = start_time(innocent.pid)
    assert before is not None
    path = write(runtime, "gone", pid=innocent.pid, start_time=before - 1)
    other = write(runtime, "older", pid=innocent.pid, start_time=before - 1, wire_version=0)
    for name in ("gone", "older"):
        with pytest.raises(MeshNotFound) as raised:
            launch.find_connection(name)
        assert "kill" not in str(raised.value)
    assert not path.exists()
    assert not other.exists()


def test_a_zombie_does_not_run(runtime: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    (runtime / "p0").touch()
    path = write(runtime, "dead", pid=process.pid, start_time=start_time(process.pid))
    assert names() == ["dead"]
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert names() == []
    assert not path.exists()
    process.wait()


@pytest.mark.parametrize("whose", ["its own", "another process'"])
def test_a_controller_of_a_version_without_start_times_is_who_listens(
    runtime: Path, whose: str, monkeypatch: pytest.MonkeyPatch, innocent: subprocess.Popen[bytes]
) -> None:
    monkeypatch.chdir(runtime)
    listener = listen()
    path = write(
        runtime,
        "old",
        wire_version=0,
        pid=os.getpid() if whose == "its own" else innocent.pid,
        directory="/proc/self/cwd",
    )
    content = json.loads(path.read_text())
    del content["start_time"], content["machine"]
    path.write_text(json.dumps(content))
    expected = f"end it: kill {os.getpid()}" if whose == "its own" else "is not running"
    with pytest.raises(MeshNotFound, match=expected):
        launch.find_connection("old")
    listener.close()


def test_one_whose_sockets_are_gone_says_what_to_do(runtime: Path) -> None:
    write(runtime, "cut", directory="/nowhere")
    assert names() == []
    with pytest.raises(
        MeshNotFound,
        match=rf"its sockets in /nowhere are gone: nobody can reach it; end it: kill {os.getpid()}$",
    ):
        launch.find_connection("cut")


def test_one_of_another_machine_is_left_alone(runtime: Path) -> None:
    path = write(runtime, "far", machine="some other", pid=2**22 - 3, start_time=5)
    assert launch.list_all_connections() == []
    assert path.exists()


DEEP = b"[" * 50_000
JUNK: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 20,
    "torn": b'{"name": "torn", "pid": 1',
    "list": b"[]",
    "number": b"7",
    "deep": DEEP,
    "infinite": b'{"name": "infinite", "pid": Infinity, "directory": "/"}',
    "untyped": b'{"name": "untyped", "pid": "1", "directory": 7}',
    "true": b'{"name": "true", "pid": true, "directory": "/tmp"}',
    "negative": b'{"name": "negative", "pid": -1, "directory": "/tmp"}',
    "group": b'{"name": "group", "pid": 0, "directory": "/tmp"}',
    "everybody": b'{"name": "everybody", "pid": 1, "directory": "/tmp"}',
    "long": b'{"name": "long", "pid": ' + b"9" * 5000 + b', "directory": "/"}',
    "null": b'{"name": "null", "pid": 400, "directory": "/a\\u0000b"}',
    "relative": b'{"name": "relative", "pid": 400, "directory": "tmp"}',
    "other": b'{"name": "somebody", "pid": 400, "directory": "/tmp"}',
}


def test_junk_is_survived(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, data in JUNK.items():
        (runtime / f"monarch_nb-{name}.json").write_bytes(data)
    os.mkfifo(runtime / "monarch_nb-fifo.json")
    (runtime / "monarch_nb-folder.json").mkdir()
    (runtime / "monarch_nb-loop.json").symlink_to("monarch_nb-loop.json")
    (runtime / "monarch_nb-round.json").symlink_to("monarch_nb-back.json")
    (runtime / "monarch_nb-back.json").symlink_to("monarch_nb-round.json")
    (runtime / "monarch_nb-zero.json").symlink_to("/dev/zero")
    with open(runtime / "monarch_nb-huge.json", "wb") as file:
        file.truncate(1 << 40)
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(runtime)
        bound.bind("monarch_nb-socket.json")
    os.mkfifo(os.fsencode(runtime) + b"/monarch_nb-\xff\xfe.json")
    write(runtime, "good")
    (runtime / "p0").touch()
    code = "from monarch_nb._client import launch; print([c.name for c in launch.list_all_connections()])"
    listed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert listed.stdout == "['good']\n"
    assert listed.stderr == ""
    typed = subprocess.run(
        [sys.executable, "-m", "monarch_nb", "list"], capture_output=True, text=True, timeout=30, check=True
    )
    assert [line.split()[0] for line in typed.stdout.splitlines()] == ["name", "good"]
    assert typed.stderr == ""


def test_what_lies_at_a_claims_place_is_named(runtime: Path) -> None:
    path = connection_file.claim_path(str(runtime / "monarch_nb-x.json"))
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match=r"no plain file; remove it.*monarch_nb-x\.claim"):
        Claim.acquire(path)
    assert connection_file.claimant(str(runtime / "monarch_nb-x.json")) is None


def test_a_dead_ones_file_is_not_removed_under_whoever_starts_that_name(runtime: Path) -> None:
    path = write(runtime, "again", pid=2**22 - 3, start_time=5)
    claim = Claim.acquire(connection_file.claim_path(str(path)), ClaimNote(who="a test").as_json())
    assert claim is not None
    assert names() == []
    assert path.exists(), "it may have been written just now"
    with pytest.raises(
        MeshNotFound, match=r"mesh 'again' is being started by a test\. Attach to it once it runs"
    ):
        launch.find_connection("again")
    claim.release()
    assert names() == []
    assert not path.exists()
    assert sorted(os.listdir(runtime)) == []
