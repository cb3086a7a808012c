"""A mesh whose controller is a pod, used from a machine that reaches nothing of the cluster but its API
server: as typed in a terminal.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube import IMAGE, PYTHON, Kube
from terminal import T, Terminal
from waiting import wait_until


class Laptop(Terminal):
    """A machine that has a kubeconfig."""

    def __init__(self, folder: Path, server: Kube) -> None:
        super().__init__(folder, KUBECONFIG=str(server.config))
        self.record = folder / "data" / "monarch_nb" / "allocations" / "big.json"
        self.write_profile("hosts = 2")

    def write_profile(self, *lines: str, own: str = "") -> None:
        general = ("[pods]", 'engine = "kubernetes"', f'python = "{PYTHON}"', 'controller = "inside"')
        of_engine = ("[pods.kubernetes]", f'image = "{IMAGE}"', own)
        self.write_profiles("\n".join((*general, *lines, *of_engine, "")))

    def asked(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.record.read_text())
        return found

    def relay(self) -> int:
        return int(json.loads((self.folder / "run" / "monarch_nb-big.json").read_text())["pid"])


@pytest.fixture
def laptop(server: Kube, tmp_path: Path) -> Iterator[Laptop]:
    found = Laptop(tmp_path, server)
    yield found
    if found.record.exists():
        found.begin("cancel", "big").wait(T)
    for kind in ("jobs", "pods", "secrets"):
        wait_until(lambda kind=kind: not server.names(kind), f"no {kind} of ours")


def nodes_of(server: Kube) -> dict[str, str]:
    """Return the nodes of the pods that run, by the pods' names."""
    pods = server.ask("GET", "/api/v1/namespaces/default/pods")["items"]
    return {
        p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods if p["status"].get("phase") == "Running"
    }


def test_it_is_started_used_left_and_found_again(server: Kube, laptop: Laptop) -> None:
    said = laptop.types("start", "big", "--on", "pods", "--procs", "1")
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in said
    assert len(server.names("jobs")) == 2
    hosts = [node for pod, node in nodes_of(server).items() if "controller" not in pod]
    assert len(hosts) == len(set(hosts)) == 2, "a node for each host"
    assert "granted" in laptop.types("hosts", "big")
    laptop.types("exec", "big", "kept = 41")

    # the connection ends, as when the machine is switched off: nothing of the mesh runs here
    os.kill(laptop.relay(), signal.SIGKILL)
    wait_until(lambda: "no mesh runs" in laptop.types("list"), "nothing runs here")
    assert "not connected here: monarch-nb start big" in laptop.types("queue")
    assert len(nodes_of(server)) == 3, "pods go on"
    assert "runs inside kubernetes job" in laptop.types("start", "big", "--on", "pods", fails=True)

    # a notebook's %mesh start, and so a notebook that is run again, finds it
    said = laptop.notebook("%load_ext monarch_nb", "%mesh start big", "%%mesh\nprint(kept + 1)", "%mesh stop")
    assert "[0-1] 42" in said, said
    wait_until(lambda: not nodes_of(server), "pods have ended with the mesh")
    assert "no hosts of engines" in laptop.types("queue")


def test_a_connection_that_is_cut_comes_back(server: Kube, laptop: Laptop) -> None:
    laptop.types("start", "big", "--on", "pods", "--procs", "1")
    for i in range(3):
        wait_until(lambda: server.streams.cut() > 0, "a connection to cut")
        assert f"[0-1] {i}" in laptop.types("exec", "big", f"print({i})")
    laptop.types("stop", "big")


def test_it_goes_on_while_the_api_server_is_away(server: Kube, laptop: Laptop) -> None:
    laptop.types("start", "big", "--on", "pods", "--procs", "1")
    go = laptop.folder / "go"
    wait = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    cell = f"import os, time\nprint('runs')\n{wait}\nprint(6 * 7)"
    runs = laptop.begin("exec", "big", cell)
    assert runs.stdout is not None and "runs" in runs.stdout.readline()
    server.stop_api()
    try:
        go.touch()
    finally:
        server.start_api()
    assert "42" in runs.communicate(timeout=T)[0]
    laptop.types("stop", "big")


def test_much_goes_through_it(laptop: Laptop) -> None:
    """More than any buffer on the way has, in both directions."""
    cells = (
        "%load_ext monarch_nb",
        "%mesh start big --on pods --procs 1",
        "import os\nsent = os.urandom(40_000_000)\n%mesh push sent",
        "%%mesh\nsent = sent[::-1]",
        "%mesh pull sent",
        "print([len(v) for v in sent.values()], sent[0] == sent[1])",
        "%mesh stop",
    )
    said = laptop.notebook(*cells)
    assert "[40000000, 40000000] True" in said, said


def test_it_grows_and_shrinks_and_keeps_its_controller(server: Kube, laptop: Laptop) -> None:
    laptop.types("start", "big", "--on", "pods", "--procs", "1")
    laptop.types("grow", "big", "1")
    assert len(nodes_of(server)) == 4
    laptop.types("shrink", "big", "2", "--force")
    wait_until(lambda: len(nodes_of(server)) == 2, "pods are given back, and the controller's isn't")
    assert "42" in laptop.types("exec", "big", "print(6 * 7)")
    laptop.types("stop", "big")


def test_it_waits_for_nodes_without_anybody(server: Kube, laptop: Laptop) -> None:
    laptop.write_profile("hosts = 3", "gpus = 1")
    needs = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    container = {"name": "c", "image": "other", "resources": needs}
    spec = {"containers": [container], "nodeName": "k2"}
    server.ask("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "other"}, "spec": spec})
    start = laptop.begin("start", "big", "--on", "pods", "--procs", "1")

    try:
        said = laptop.interrupts_in_queue(start, "Insufficient nvidia.com/gpu")
        assert "stays in the queue" in said
    finally:
        start.kill()
        server.ask("DELETE", "/api/v1/namespaces/default/pods/other?gracePeriodSeconds=0")
    assert "(hosts=3, procs=1: ranks 0-2) is ready" in laptop.types("start", "big")
    laptop.types("stop", "big")


@pytest.mark.parametrize("moment", ["controller", "invitation", "hosts"])
def test_a_program_that_is_killed_forgets_nothing(server: Kube, laptop: Laptop, moment: str) -> None:
    """Right after it has asked for the controller, has reached it, has asked for hosts."""
    start = laptop.begin("start", "big", "--on", "pods", "--procs", "1")

    def is_there() -> bool:
        assert start.poll() is None, start.communicate()
        jobs = server.names("jobs")
        has_places = laptop.record.exists() and laptop.asked()["hosts"]
        return {"controller": len(jobs) == 1, "invitation": bool(has_places), "hosts": len(jobs) == 2}[moment]

    wait_until(is_there, moment, T)
    start.kill()
    start.wait()
    asked = laptop.asked()
    if moment == "controller":
        asked |= {"controller_id": ""}
    laptop.record.write_text(json.dumps(asked | {"id": ""}))
    cells = "%load_ext monarch_nb", "%mesh start big", "%mesh stop"
    said = laptop.notebook(*cells)
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in said, said


def test_two_that_wait_get_one_mesh(server: Kube, laptop: Laptop) -> None:
    start = laptop.begin("start", "big", "--on", "pods", "--procs", "1")
    wait_until(lambda: laptop.record.exists() and laptop.asked()["controller_id"], "a controller", T)
    others = [laptop.begin("start", "big") for _ in range(2)]
    said = [each.communicate(timeout=T) for each in (start, *others)]
    assert all("(hosts=2, procs=1: ranks 0-1)" in out for out, _ in said), said
    assert len(server.names("jobs")) == 2
    laptop.types("stop", "big")


def test_a_controller_that_ends_ends_the_mesh(server: Kube, laptop: Laptop) -> None:
    laptop.types("start", "big", "--on", "pods", "--procs", "1")
    server.ask("DELETE", f"/apis/batch/v1/namespaces/default/jobs/{laptop.asked()['controller_id']}"
               "?propagationPolicy=Background")  # fmt: skip
    wait_until(lambda: not nodes_of(server), "hosts end with their controller")
    wait_until(lambda: "no mesh runs" in laptop.types("list"), "the connection has ended, too")
    assert "(hosts=2, procs=1: ranks 0-1) is ready" in laptop.types(
        "start", "big", "--on", "pods", "--procs", "1"
    )
    laptop.types("stop", "big")


def test_a_mesh_that_cannot_be_started_says_why(server: Kube, laptop: Laptop) -> None:
    laptop.write_profile("hosts = 2", 'setup = ["echo error: no such module >&2; exit 3"]')
    assert "error: no such module" in laptop.types("start", "big", "--on", "pods", fails=True)
    laptop.write_profile("hosts = 2", own=f'kubeconfig = "{server.user_config}"')
    said = laptop.types("start", "big", "--on", "pods", fails=True)
    assert "get pods/exec and get pods/portforward in namespace default" in said, said
    assert "no hosts of engines" in laptop.types("queue")


def test_what_would_be_submitted_is_shown(laptop: Laptop) -> None:
    said = laptop.types("start", "big", "--on", "pods", "--dry-run")
    assert "with the controller, and when it runs" in said and "inside_job" in said
