"""Requests to Ray, in a separate process: the program that starts a mesh may use Ray differently.

Run as a file, by an interpreter that has ray and may have nothing else of ours: a request is read as JSON
from standard input, and answered as JSON in the last line of standard output.

A detached actor, `MeshHosts`, has the placement group and an actor on each node, which runs the launcher. All
of these end with it, and it ends when all launchers have.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import ray  # type: ignore[import-not-found,unused-ignore]
from ray.util.placement_group import placement_group, placement_group_table  # type: ignore[import-not-found,unused-ignore]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # type: ignore[import-not-found,unused-ignore]

NAMESPACE = "monarch_nb"
ASK_S = 10.0


class Host:
    """The Ray actor that runs a launcher on one node; the launcher is told to end when this worker ends, for
    any reason.
    """

    def start(self, script: str, invitation: str) -> str:
        """Start the launcher; return the node's address."""
        import ctypes
        import os
        import signal
        import subprocess
        import tempfile

        def end_with_worker() -> None:
            ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG

        # Ray counts a worker's threads, and takes its child processes for workers: ranks are none.
        kept = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS" and not k.startswith("RAY_")}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this actor
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {script}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            env=kept,
            preexec_fn=end_with_worker,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(invitation.encode())
        self.process.stdin.close()
        return str(ray.util.get_node_ip_address())

    def ended(self) -> str | None:
        """Return the last output of a launcher that has ended; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        self.errors.seek(0)
        lines = self.errors.read(65536).decode(errors="replace").strip().splitlines()
        return "" if code == 0 else "; ".join(lines[-3:]) or f"exit code {code}"


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


def look(name: str) -> Any:
    """Return the state of a mesh's hosts; None if their actor doesn't exist."""
    try:
        return ray.get(ray.get_actor(name, namespace=NAMESPACE).look.remote(), timeout=ASK_S)
    except (ValueError, ray.exceptions.RayActorError):
        return None


def end_hosts(name: str) -> None:
    """End the actor, and the hosts that it holds."""
    try:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE))
    except ValueError:
        return


def nodes() -> list[dict[str, float]]:
    """Return the resources of each live node."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def main() -> None:
    """Execute the request on standard input, and print the answer."""
    request = json.loads(sys.stdin.read())
    address = request.pop("address")
    what: Any = {"submit": submit, "look": look, "end": end_hosts, "nodes": nodes}[request.pop("do")]
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
    print("\n" + json.dumps(what(**request)), flush=True)


if __name__ == "__main__":
    main()
