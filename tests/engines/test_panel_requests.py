"""Hosts of a real Slurm by the server's REST: asked for, waited for without the server, cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurmd import SETUP, Cluster
from sshd import Profiles
from waiting import wait_for_server, wait_until

from monarch_nb.job.allocation import list_records

GENERAL = f'engine = "slurm"\nsetup = [{SETUP!r}]\n'


class Server:
    """A Jupyter server in a process of its own, with the settings of this one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        log = folder / "log"
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root",
                    "--ServerApp.port=0", "--IdentityProvider.token=T", f"--ServerApp.root_dir={folder}",
                    "--ServerApp.jpserver_extensions={'monarch_nb': True}",
                ],
                stdout=file,
                stderr=file,
            )  # fmt: skip
        port = wait_for_server(self.process, Path(os.environ["JUPYTER_RUNTIME_DIR"]), log)
        self._address = f"http://127.0.0.1:{port}/monarch_nb/api/"

    def ask(self, method: str, path: str, **body: object) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(
            self._address + path, data, {"Authorization": "token T"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=150) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text else None

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "allocations")[1]
        return found

    def row(self, name: str, *states: str) -> dict[str, Any]:
        """Return the row of a mesh's request once it's in one of some states."""
        return wait_until(
            lambda: next((r for r in self.rows() if r["name"] == name and r["state"] in states), None),
            f"{name} {' or '.join(states)}, in {self.rows()}",
        )

    def close(self, *, kills: bool = False) -> None:
        if kills:
            self.process.kill()
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def opened(
    tmp_path: Path, cluster: Cluster, profiles: Profiles, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Server]]:
    """Start servers; all are ended, and all nodes are idle again."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    profiles(
        f"[all]\n{GENERAL}hosts = 3\ngpus = 2\n[broken]\n{GENERAL}python = '/none/python'\n"
        '[far]\nengine = "slurm"\nlogin = "nowhere.invalid"\n'
    )
    servers: list[Server] = []

    def start() -> Server:
        servers.append(Server(tmp_path / f"server{len(servers)}"))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
    assert list_records() == []
    wait_until(lambda: cluster.idle_nodes() == 3, f"idle nodes: {cluster.command('squeue')}")


def test_a_request_outlives_the_server_that_has_made_it(
    opened: Callable[[], Server], cluster: Cluster, full: Callable[[], None]
) -> None:
    server = opened()
    places = {row["name"]: row for row in server.ask("GET", "clusters")[1]}
    assert (places["all"]["why_not"], places["all"]["hosts"], places["all"]["gpus"]) == ("", "3", 2)
    assert "nowhere.invalid" in places["far"]["why_not"] and not places["slurm"]["is_profile"]

    body = {"name": "later", "on": "all", "dims": [["procs", 1]], "time": "30m"}
    status, row = server.ask("POST", "meshes", **body)
    assert (status, row["state"], row["is_up"], row["is_waited_for"]) == (202, "queued", False, True)
    assert row["job"].startswith("slurm job ") and row["job"].endswith(" on all")
    assert server.row("later", "queued")["reason"] in ("Resources", "Priority", "None")
    status, refusal = server.ask("POST", "meshes", **body)
    assert status == 400 and "waits for its hosts; choose another name" in refusal["message"]

    server.close(kills=True)
    full()
    server = opened()
    wait_until(lambda: server.row("later", "queued", "granted")["is_up"], "ranks on hosts that were granted")
    row = server.row("later", "granted")
    assert (row["num_hosts"], row["hosts"]) == (3, "3") and 0 < row["ends_at"] - row["submitted_at"] < 2400
    (mesh,) = server.ask("GET", "meshes")[1]
    assert (mesh["name"], mesh["states"]) == ("later", {"idle": 3})

    assert server.ask("DELETE", "allocations/later") == (204, None)
    assert server.ask("GET", "meshes")[1] == server.rows() == []
    status, refusal = server.ask("DELETE", "allocations/later")
    assert status == 404 and "no hosts of an engine were requested" in refusal["message"]


def test_a_wait_goes_on_and_what_fails_is_said(
    opened: Callable[[], Server], cluster: Cluster, full: Callable[[], None]
) -> None:
    server = opened()
    for body, words in (
        ({"on": "al"}, "Did you mean all?"),
        ({"on": "all", "hosts": "9"}, "9 hosts were asked for, and the largest partition has 3"),
        ({"on": "all", "hosts": "0..2"}, "hosts must be N, LEAST..MOST"),
        ({"hosts": "2..3"}, "hosts is for hosts of an engine"),
    ):
        status, refusal = server.ask("POST", "meshes", name="none", **body)
        assert status in (400, 409) and words in refusal["message"], (body, refusal)
    assert server.rows() == []

    # The program that waits is killed, as with the whole session: the request is in the queue nevertheless.
    assert server.ask("POST", "meshes", name="left", on="all", hosts="1", dims=[["procs", 1]])[0] == 202
    (asked,) = list_records()
    os.kill(asked.submitted_by, signal.SIGKILL)
    wait_until(lambda: not server.row("left", "queued")["is_waited_for"], "a wait that has ended")
    assert server.ask("POST", "allocations/left/wait") == (202, {})
    assert server.row("left", "queued")["is_waited_for"]
    full()
    wait_until(lambda: server.row("left", "queued", "granted")["is_up"], "ranks on hosts that were granted")
    assert server.ask("DELETE", "allocations/left")[0] == 204
    assert server.ask("POST", "allocations/left/wait")[0] == 404

    assert server.ask("POST", "meshes", name="bad", on="broken")[0] == 202
    assert "/none/python" in server.row("bad", "failed")["reason"]
    assert server.ask("DELETE", "allocations/bad")[0] == 204 and server.rows() == []
