"""A mesh on another machine: `python tests/benchmarks/bench_far.py [PART ...]`. Parts: calls, pods, lost.

calls: a call to one rank of a mesh that this program reaches by one connection outwards (ssh's, or a key's
own), beside raw ZeroMQ over the same hops. pods: the same through the API server of a Kubernetes
(MONARCH_NB_TEST_KUBERNETES, see tests/engines/build_kubernetes.sh). lost: from the moment
when a machine's processes are killed, or its cable is pulled, to the exception, and to the mesh that a spare
has made whole; the machines are network namespaces.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

import kube
import namespaces
import sshd
from far_machine import Machines, machines_in
from raw_far import RawHops

from monarch_nb import mesh as meshes
from monarch_nb.actor import Actor, attach_to_workers, endpoint
from monarch_nb.actor.workers import new_key_file
from monarch_nb.job.allocation import Plan, read_record
from monarch_nb.job.engines import engine_of
from monarch_nb.job.profiles import Profile
from monarch_nb.job.spec import HostSpec
from monarch_nb.mesh import Mesh, on_engine
from monarch_nb.mesh.inside import start_inside

T = 120
ROUNDS, CALLS = 5, 200
WORKER = (
    "import sys; from monarch_nb.actor import run_worker_loop_forever; "
    "run_worker_loop_forever(address=sys.argv[1], ca=sys.argv[2])"
)

LISTENER = (
    "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(99)"
)


class Echo(Actor):
    """Answers."""

    @endpoint
    def echo(self) -> None:
        """Answer."""


def say(what: str, ours: float, unit: str, floor: str = "", aim: str = "") -> None:
    """Print a row."""
    print(f"{what:<60} {ours:>8.3g} {unit:<3} {floor:<40} {aim}", flush=True)


def median_ms(call: Callable[[], object]) -> float:
    """Return the median time of a call in milliseconds."""
    times = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


# --- calls


@contextmanager
def forwarded(machines: Machines, port: int) -> Iterator[int]:
    """Have ssh forward a port here to one there; return the one here."""
    here = sshd.free_port()
    where = f"127.0.0.1:{here}:127.0.0.1:{port}"
    ssh = subprocess.Popen(["ssh", "-F", str(machines.server.config), "-N", "-L", where, "login"])
    try:
        yield here
    finally:
        ssh.terminate()
        ssh.wait(T)


def calls() -> None:
    """A call to one rank, over ssh and by a key of one's own, beside raw ZeroMQ over the same hops."""
    with tempfile.TemporaryDirectory() as folder, machines_in(Path(folder)) as machines:
        machines.there("start", "dev", "--procs", "2").check_returncode()
        os.environ.update(machines.env)
        machines.attach("dev", "--as", "by-ssh").check_returncode()
        invitation = Path(folder) / "key"
        machines.there("share", "dev", "--own", "--file", str(invitation)).check_returncode()
        machines.here("attach", str(invitation), "--as", "by-key").check_returncode()
        port = sshd.free_port()
        with forwarded(machines, port) as here:
            _beside("over ssh", meshes.attach("by-ssh"), RawHops(port, f"tcp://127.0.0.1:{here}"))
        port = sshd.free_port()
        _beside("by a key", meshes.attach("by-key"), RawHops(port, f"tcp://127.0.0.1:{port}"))
        machines.here("stop", "by-ssh")


def _beside(what: str, mesh: Mesh, raw: RawHops) -> None:
    actor = mesh.slice(procs=0).spawn("echo", Echo)
    raw.call()
    ours, floors = [], []
    try:
        for _ in range(ROUNDS):
            ours.append(median_ms(lambda: actor.echo.call_one().get(T)))
            floors.append(median_ms(raw.call))
    finally:
        raw.close()
    ratios = sorted(a / b for a, b in zip(ours, floors, strict=True))
    floor = statistics.median(floors)
    say(f"{what}: a call to one rank", statistics.median(ours), "ms", f"raw ZeroMQ, same hops {floor:.3g} ms",
        f"{ratios[len(ratios) // 2]:.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f}); at most 1.5 x")  # fmt: skip


# --- through a Kubernetes API server


def pods() -> None:
    """A call to one rank of a mesh whose controller is in a pod, beside raw ZeroMQ through the API server."""
    if kube.why_not():
        print(f"pods: {kube.why_not()}")
        return
    with tempfile.TemporaryDirectory() as name:
        cluster = kube.Kube(Path(name))
        try:
            os.environ["KUBECONFIG"] = str(cluster.config)
            _pods(Path(name))
        finally:
            cluster.close()


def _pods(folder: Path) -> None:
    own = (("image", kube.IMAGE), ("kubeconfig", os.environ["KUBECONFIG"]))
    spec = HostSpec("kubernetes", python=kube.PYTHON, controller="inside", own=own)
    mesh = start_inside("pods", Profile("pods", spec), Plan((("procs", 2),)))
    try:
        asked = read_record("pods")
        assert asked is not None
        tunnel = engine_of(spec).tunnel(asked)
        assert tunnel is not None
        port, socket = sshd.free_port(), str(folder / "way")
        far = subprocess.Popen([sys.executable, "-c", LISTENER, str(port)])  # until the raw one listens
        with tunnel.opened(socket, f"tcp://127.0.0.1:{port}"):
            far.kill()
            far.wait(T)
            _beside("through an API server", mesh, RawHops(port, f"ipc://{socket}", sshd.free_port()))
    finally:
        on_engine.cancel("pods")


# --- machines that are lost


def lost() -> None:
    """A machine whose processes are killed, or whose cable is pulled, while its ranks work."""
    if namespaces.why_not():
        print(f"lost: {namespaces.why_not()}")
        return
    for what, lose, most_s in (
        ("a machine's processes are killed", _kill, 1.5),
        ("a machine's cable is pulled", namespaces.Namespaces.cut, 5.0),
    ):
        rounds = [_lost(lose) for _ in range(ROUNDS)]
        noticed, healed = zip(*rounds, strict=True)
        say(f"{what}: to the exception", statistics.median(noticed), "s",
            f"{min(noticed):.3g} to {max(noticed):.3g}", f"at most {most_s:g} s")  # fmt: skip
        say("... to a mesh that a spare has made whole", statistics.median(healed), "s",
            f"{min(healed):.3g} to {max(healed):.3g}", "at most 10 s")  # fmt: skip


def _kill(machines: namespaces.Namespaces, name: str) -> None:
    for pid in machines.pids(name):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _lost(lose: Callable[[namespaces.Namespaces, str], None]) -> tuple[float, float]:
    machines = namespaces.Namespaces(2, net=96)
    try:
        return _noticed_and_healed(machines, lambda: lose(machines, machines.names[0]))
    finally:
        machines.close()


def _noticed_and_healed(
    machines: namespaces.Namespaces, lose_first: Callable[[], None]
) -> tuple[float, float]:
    """Return the seconds to the exception, and to the healed mesh."""
    key = new_key_file()
    addresses = [f"tcp://10.96.{i}.2:7000" for i in (1, 2)]
    workers = [
        subprocess.Popen(["ip", "netns", "exec", name, sys.executable, "-c", WORKER, address, key])
        for name, address in zip(machines.names, addresses, strict=True)
    ]
    try:
        hosts = attach_to_workers(ca=key, workers=addresses)
        procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2})
        procs.execute(os.getpid).get(T)
        pending = procs.execute(signal.pause)
        begun = time.perf_counter()
        lose_first()
        pending.exception(T)
        noticed = time.perf_counter() - begun
        procs.heal()
        procs.execute(os.getpid).get(T)
        healed = time.perf_counter() - begun
        procs.stop().get(T)
        return noticed, healed
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(T)


PARTS: dict[str, Callable[[], None]] = {"calls": calls, "pods": pods, "lost": lost}

if __name__ == "__main__":
    if len(sys.argv) == 2:
        PARTS[sys.argv[1]]()
    else:  # a program is in one mesh's controller for good
        for part in sys.argv[1:] or PARTS:
            subprocess.run([sys.executable, __file__, part], check=True)
