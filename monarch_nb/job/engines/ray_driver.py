"""Requests to Ray, in a separate process: the program that starts a mesh may use Ray differently.

Run as a file, by an interpreter that has ray and may have nothing else of ours: each line of standard input
is a request as JSON, which is answered by a line of standard output, as JSON; a failure ends the process. It
ends, too, when its input does, or when nothing was asked for a while: see `ray_program`.

A detached actor, `MeshHosts`, has the placement group and an actor on each node, which runs the launcher. All
of these end with it, and it ends when all launchers have. Another, `MeshInside`, runs the program that starts
a mesh with its controller inside, and ends with that.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import ray  # type: ignore[import-not-found,unused-ignore]
from ray.util.placement_group import placement_group, placement_group_table  # type: ignore[import-not-found,unused-ignore]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # type: ignore[import-not-found,unused-ignore]

NAMESPACE = "monarch_nb"
ASK_S = 10.0
IDLE_S = 10.0
"""How long the next request is waited for."""
LAST_S = 60.0
"""How long a request may go on whose asker has ended; what was asked for is found by name later."""


class Host:
    """The Ray actor that runs a launcher on one node; the launcher is told to end when this worker ends, for
    any reason.
    """

    def start(self, script: str, invitation: str) -> str:
        """Start the launcher; return the node's address."""
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this actor
        self.process = run(script, invitation, self.errors, subprocess.DEVNULL)
        return str(ray.util.get_node_ip_address())

    def ended(self) -> str | None:
        """Return the last output of a launcher that has ended; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        return "" if code == 0 else "; ".join(lines_of(self.errors)[-3:]) or f"exit code {code}"


class MeshInside:
    """The Ray actor that runs the program with a mesh's controller, which is told to end when this worker
    ends, for any reason.
    """

    def __init__(self, name: str, script: str, request: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="monarch_nb-ray-")
        self.path = os.path.join(self.folder, "invitation")
        self.output = open(os.path.join(self.folder, "output"), "w+b")  # noqa: SIM115 - as long as this actor
        given = {
            "address": ray.get_runtime_context().gcs_address,
            "driver": sys.executable,
            "hosts": hosts_of(name),
            "invitation": self.path,
        }
        self.process = run(script, request, self.output, self.output, MONARCH_NB_IN_RAY=json.dumps(given))
        threading.Thread(target=self.keep, daemon=True).start()

    def keep(self) -> None:
        """Return when the program has ended."""
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        time.sleep(ASK_S)  # who waits for the mesh is told first why there's none
        os._exit(0)

    def end_program(self) -> None:
        """End the program, and with it the mesh; leave no file."""
        self.process.terminate()
        try:
            self.process.wait(ASK_S / 2)
        except subprocess.TimeoutExpired:
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def look(self) -> dict[str, object]:
        """Return the state of the mesh, in the words of `MeshHosts.look`: it's placed once it runs."""
        is_over = self.process.poll() is not None
        words = lines_of(self.output)[-3:] if is_over else []
        return {
            "state": "CREATED" if os.path.exists(self.path) else "PENDING",
            "reason": "",
            "nodes": [str(ray.util.get_node_ip_address())],
            "words": [line.removeprefix("node ") for line in words],
            "is_over": is_over,
        }

    def invitation(self) -> str:
        """Return the invitation to the mesh; empty until there is one."""
        try:
            with open(self.path) as file:
                return file.read()
        except FileNotFoundError:
            return ""


def run(script: str, text: str, errors: Any, output: Any, **variables: str) -> subprocess.Popen[bytes]:
    """Start a program of this package in a worker, with a text as its standard input; it's told to end when
    the worker ends.
    """

    def end_with_worker() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG

    # Ray counts a worker's threads, and takes its child processes for workers: ranks are none.
    kept = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS" and not k.startswith("RAY_")}
    process = subprocess.Popen(
        ["bash", "-c", f"exec {script}"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env=kept | variables,
        preexec_fn=end_with_worker,
    )
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.close()
    return process


def lines_of(output: Any) -> list[str]:
    """Return the last lines that a program has written into a file."""
    begin = max(0, os.fstat(output.fileno()).st_size - 65536)
    return os.pread(output.fileno(), 65536, begin).decode(errors="replace").strip().splitlines()


class MeshHosts:
    """The Ray actor that holds the hosts of one mesh."""

    def __init__(self, num: int, bundle: dict[str, float], script: str, invitation: str) -> None:
        self.nodes: dict[int, str] = {}
        self.words: dict[int, str] = {}
        self.group = placement_group([bundle] * num, strategy="STRICT_SPREAD")
        self.num = num
        threading.Thread(target=self.keep, args=(bundle, script, invitation), daemon=True).start()

    def keep(self, bundle: dict[str, float], script: str, invitation: str) -> None:
        """Start a launcher on each node when the nodes are granted; return when all launchers have ended."""
        ray.get(self.group.ready())
        made = ray.remote(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), max_restarts=0)(Host)
        hosts = [
            made.options(scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, i)).remote()
            for i in range(self.num)
        ]
        started = [host.start.remote(script, invitation) for host in hosts]
        for i, each in enumerate(started):
            self.note(i, each, self.nodes)
        while len(self.words) < self.num:
            time.sleep(0.5)
            for i, host in enumerate(hosts):
                if i not in self.words:
                    self.note(i, host.ended.remote(), self.words)
        time.sleep(ASK_S)  # the program that waits for the hosts is told first why they don't join
        os._exit(0)

    def note(self, i: int, answer: Any, found: dict[int, str]) -> None:
        """Record the answer of a host's actor; an actor that is lost counts as ended."""
        try:
            value = ray.get(answer)
        except ray.exceptions.RayError as error:
            self.words[i] = f"{self.nodes.get(i, 'a node')}: ray: {str(error).strip().splitlines()[0]}"
            return
        if value is not None:
            found[i] = value

    def look(self) -> dict[str, object]:
        """Return the state of the hosts."""
        about = placement_group_table(self.group)
        return {
            "state": about["state"],
            "reason": str(about.get("stats", {}).get("scheduling_state", "")),
            "nodes": [self.nodes[i] for i in sorted(self.nodes) if i not in self.words],
            "words": [words.removeprefix("node ") for words in self.words.values() if words],
            "is_over": len(self.words) == self.num,
        }


def submit(name: str, num: int, bundle: dict[str, float], script: str, invitation: str) -> Any:
    """Start the actor that holds a mesh's hosts, and return its state."""
    made = ray.remote(num_cpus=0, max_restarts=0)(MeshHosts)
    actor = made.options(name=name, namespace=NAMESPACE, lifetime="detached")
    return ray.get(actor.remote(num, bundle, script, invitation).look.remote())


def submit_inside(name: str, script: str, request: str) -> Any:
    """Start the actor that runs the program with a mesh's controller, and return its state."""
    made = ray.remote(num_cpus=0, max_restarts=0)(MeshInside)
    actor = made.options(name=name, namespace=NAMESPACE, lifetime="detached")
    return ray.get(actor.remote(name, script, request).look.remote())


def ask(name: str, method: str) -> Any:
    """Return the answer of an actor of ours; None if it doesn't exist."""
    try:
        actor = ray.get_actor(name, namespace=NAMESPACE)
        return ray.get(getattr(actor, method).remote(), timeout=ASK_S)
    except (ValueError, ray.exceptions.RayActorError):
        return None


def look(name: str) -> Any:
    """Return the state of a mesh's hosts; None if their actor doesn't exist."""
    found = ask(name, "look")
    if found is not None and found["state"] == "PENDING":
        waiting = ask(hosts_of(name), "look")  # if its controller is inside
        if waiting is not None:
            is_placed = waiting["state"] == "CREATED"
            found["reason"] = "its hosts are joining" if is_placed else waiting["reason"]
    return found


def hosts_of(name: str) -> str:
    """Return the name of the actor with the hosts of a mesh whose controller is inside."""
    return f"{name}-hosts"


def invitation(name: str) -> str:
    """Return the invitation to the mesh that an actor has started; empty if there is none."""
    return ask(name, "invitation") or ""


def end_hosts(name: str) -> None:
    """End the actor, and the hosts that it holds."""
    for each in (name, hosts_of(name)):
        with contextlib.suppress(ValueError):
            actor = ray.get_actor(each, namespace=NAMESPACE)
            if hasattr(actor, "end_program"):
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.get(actor.end_program.remote(), timeout=ASK_S)
            ray.kill(actor)


def nodes() -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def read(requests: queue.SimpleQueue[str | None]) -> None:
    """Pass requests on until whoever asks has ended; then end this process, if need be amid a request."""
    for line in sys.stdin:
        requests.put(line)
    requests.put(None)
    time.sleep(LAST_S)
    os._exit(1)


def main() -> None:
    """Execute the requests on standard input, and print the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Ray itself prints is no answer
    requests: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=read, args=(requests,), daemon=True).start()
    known: dict[str, Any] = {
        "submit": submit,
        "submit_inside": submit_inside,
        "look": look,
        "invitation": invitation,
        "end": end_hosts,
        "nodes": nodes,
    }
    is_connected = False
    while True:
        try:
            line = requests.get(timeout=IDLE_S)
        except queue.Empty:
            return
        if line is None:
            return
        request = json.loads(line)
        address = request.pop("address")
        what = known[request.pop("do")]
        if not is_connected:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
            is_connected = True
        print(json.dumps(what(**request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
