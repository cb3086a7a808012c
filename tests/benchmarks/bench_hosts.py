"""Many hosts: `python tests/benchmarks/bench_hosts.py [PART ...]`. Parts: loss, scale, printed, engines.

Prints, beside their floors: how long the loss of a host process takes to an exception, and to a mesh that a
spare has made whole; what 1,024 ranks on 128 hosts cost the controller (the hosts are simulated: real
messages, no ranks); what a printed line of 256 real ranks on 8 host processes costs it; from a command to the
first answer on ssh and on a real Slurm.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from unittest import mock

import psutil
from msgspec.structs import asdict
from msgspec.structs import replace as replace_fields

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

import slurmd
import sshd
from counting_proxy import CountingProxy

from monarch_nb._client import session as sessions
from monarch_nb._host.config import HostConfig
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Ticket, Tickets
from monarch_nb._shape import Extent, Shape
from monarch_nb.actor.host_mesh import HostMesh
from monarch_nb.exceptions import MeshError
from monarch_nb.job import process
from monarch_nb.job.allocation import Plan
from monarch_nb.job.engines import ray_program
from monarch_nb.job.process import agent_config
from monarch_nb.job.profiles import Profile
from monarch_nb.job.spec import HostRange, HostSpec, machines
from monarch_nb.mesh import Mesh, on_engine, start

T = 120
ROUNDS = 3
CELLS = 50
SILENT, LINE = "pass", "print(rank)"
SIMULATED = """
import json, sys, time, zmq
from monarch_nb._protocol.base import decode, encode
from monarch_nb._protocol.events import Beat, EndsHere, HostJoined, RankIsUp
from monarch_nb._protocol.exits import RankExit
from monarch_nb._protocol.ranks import StartRanks, StopRanks
from monarch_nb._wire import address, message as wire
from monarch_nb._wire.pieces import join

context, hosts, ranks = zmq.Context(), {}, {}
poller = zmq.Poller()
for t in json.load(open(sys.argv[1])):
    link = context.socket(zmq.DEALER)
    link.setsockopt(zmq.IDENTITY, b"h%d.%d.0a" % (t["host"], t["generation"]))
    link.curve_serverkey = t["controller_key"].encode()
    link.curve_publickey, link.curve_secretkey = t["public"].encode(), t["secret"].encode()
    link.connect(t["controller"])
    hosts[link] = t["host"]
    poller.register(link, zmq.POLLIN)

def tell(link, event, src=None):
    src = address.host_proc(hosts[link]) if src is None else src
    name, to = event.wire_name.encode(), address.CONTROLLER
    link.send(wire.pack(wire.EVENT, src=src, dst=to, name=name, payload=encode(event)))

def take(link):
    message = wire.unpack(bytes(join([f.buffer for f in link.recv_multipart(copy=False)])[0]))
    name = message.name.decode()
    if name == StartRanks.wire_name:
        asked = decode(StartRanks, message.payload)
        for place in asked.ranks:
            ranks[place.proc] = (asked.spec.group, place.rank)
            tell(link, RankIsUp(1), place.proc)
    elif name == StopRanks.wire_name:
        procs = decode(StopRanks, message.payload).procs
        tell(link, EndsHere(tuple(RankExit(p, *ranks[p], "sim", 1, stopped=True) for p in procs)))

for link, index in hosts.items():
    tell(link, HostJoined(f"sim{index}", 1, f"sim{index}", 8, 8))
beat = time.monotonic()
while True:
    for link, _ in poller.poll(100):
        while link.get(zmq.EVENTS) & zmq.POLLIN:
            take(link)
    if time.monotonic() - beat > 1:
        beat = time.monotonic()
        for link in hosts:
            tell(link, Beat())
"""


def say(what: str, ours: float, unit: str, aim: str, floor: str = "") -> None:
    """Print a row."""
    print(f"{what:<66} {ours:>8.3g} {unit:<2} {floor:<34} {aim}", flush=True)


def took(function: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds."""
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


# --- losses


def loss() -> None:
    """Kill host processes of a mesh with spares."""
    exceptions, healed = [], []
    for round_ in range(ROUNDS):
        mesh = start(f"loss{round_}", {"procs": 2}, num_hosts=2, num_spares=1, on_failure="heal")
        waiting = mesh.slice(hosts=1).execute(signal.pause)
        lost = _last_used(mesh)
        begun = time.perf_counter()
        os.kill(lost, signal.SIGKILL)
        waiting.exception(T)
        exceptions.append(time.perf_counter() - begun)
        while not _answers(mesh):
            time.sleep(0.02)
        healed.append(time.perf_counter() - begun)
        mesh.stop().get(T)
    say("loss of a host process to the exception", min(exceptions), "s", "at most 1.5 s")
    say("... to a mesh that a spare has made whole", min(healed), "s", "at most 10 s")


def _last_used(mesh: Mesh) -> int:
    """Return the pid of the host process with the last ranks; spares have none."""
    status = mesh.status()
    used = {r.host for r in status.ranks}
    return next(h.pid for h in reversed(status.hosts) if h.index in used)


def _answers(mesh: Mesh) -> bool:
    try:
        return len(mesh.execute(os.getpid).get(T)) == 4
    except MeshError:
        return False


# --- scale


def scale(num_hosts: int = 128, per_host: int = 8) -> None:
    """Start and stop simulated ranks."""
    session = sessions.current()
    tickets = session.request(Tickets(num_hosts))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([asdict(t) for t in tickets], file)
        file.flush()
        simulated = subprocess.Popen([sys.executable, "-c", SIMULATED, file.name])
        try:
            hosts = HostMesh([t.host for t in tickets], Shape.full(Extent(["hosts"], [num_hosts])), session)
            hosts.initialized.get(T)
            controller = psutil.Process(session.request(Status()).pid)
            what = f"{num_hosts * per_host} simulated ranks on {num_hosts} hosts"
            starts, stops = [], []
            for _ in range(ROUNDS):
                before = _cpu_s(controller)
                procs = hosts.spawn_procs({"gpus": per_host})
                procs.initialized.get(T)
                between = _cpu_s(controller)
                wall = took(procs.stop().get)
                starts.append(between - before)
                stops.append((_cpu_s(controller) - between, wall))
            say(f"{what}: spawn, CPU of the controller", min(starts), "s", "at most 0.1 s")
            say(f"{what}: stop, CPU of the controller", min(c for c, _ in stops), "s", "at most 0.3 s")
            say(f"{what}: stop", min(w for _, w in stops), "s", "")
            lost = [h for h in session.request(Status()).hosts if h.state == "lost"]
            say(f"{what}: hosts declared lost", len(lost), "", "0")
        finally:
            simulated.kill()
            simulated.wait()


def _cpu_s(process: psutil.Process) -> float:
    found = process.cpu_times()
    return float(found.user + found.system)


# --- printed lines


def printed(num_hosts: int = 8, per_host: int = 32) -> None:
    """Have all ranks print a line, and count what their hosts send to the controller."""
    counters: list[CountingProxy] = []

    def by_proxy(ticket: Ticket, directory: str) -> HostConfig:
        if not counters:
            counters.append(CountingProxy(ticket.controller))
        return agent_config(replace_fields(ticket, controller=counters[0].address), directory)

    process.agent_config = by_proxy
    with mock.patch.dict(os.environ, MONARCH_NB_PRELOAD="none"):
        mesh = start("printed", {"gpus": per_host}, num_hosts=num_hosts, force=True)
    process.agent_config = agent_config
    try:
        for source in (SILENT, LINE):
            mesh.run(source, quiet=True)
        controller = psutil.Process(sessions.of_transport(mesh._transport).request(Status()).pid)
        silent, line = (
            _cost(partial(mesh.run, s, quiet=True), controller, counters[0]) for s in (SILENT, LINE)
        )
        what = f"a line of {num_hosts * per_host} ranks on {num_hosts} hosts"
        say(
            f"{what}: messages of a host, with the answers", line[1] / num_hosts, "", "one more",
            f"a silent cell {silent[1] / num_hosts:.1f}",
        )  # fmt: skip
        say(
            f"{what}: CPU of the controller", 1e3 * line[0], "ms", "",
            f"a silent cell {1e3 * silent[0]:.1f} ms",
        )  # fmt: skip
    finally:
        mesh.stop().get(T)
        counters[0].close()


def _cost(
    run: Callable[[], object], controller: psutil.Process, counter: CountingProxy
) -> tuple[float, float]:
    """Return the CPU seconds of the controller and the messages of all hosts for one cell."""
    cpu, sent = _cpu_s(controller), counter.num_messages
    for _ in range(CELLS):
        run()
    return (_cpu_s(controller) - cpu) / CELLS, (counter.num_messages - sent) / CELLS


# --- engines


def engines() -> None:
    """From a command to the first answer, beside a bare interpreter started the same way."""
    with tempfile.TemporaryDirectory() as folder:
        no_ray = "" if importlib.util.find_spec("ray") else "no ray: pip install ray"
        for part, why_not in (
            (_ssh, sshd.why_not()),
            (_slurm, slurmd.why_not()),
            (_ray, no_ray),
            (_compose, ""),
        ):
            if why_not:
                print(f"{part.__name__[1:]}: {why_not}")
            else:
                part(Path(folder))


def _first_answer(spec: HostSpec) -> float:
    profile = Profile(spec.engine, spec)

    def run() -> None:
        mesh = on_engine.start_on("bench", profile, Plan((("procs", 1),)))
        mesh.execute(os.getpid).get(T)

    try:
        return took(run)
    finally:
        on_engine.cancel("bench")


def _no_queue() -> float:
    return 0.0


def _rows(
    engine: str, spec: HostSpec, bare: Callable[[str], list[str]], queue_s: Callable[[], float] = _no_queue
) -> None:
    """Print the rows of an engine: ranks without torch, and with it, each beside an interpreter that imports
    as much.

    Args:
        bare: returns the command that has an interpreter run a program there.
        queue_s: returns how long the hosts of the last start waited to be given out: not counted.
    """
    without = replace(spec, setup=(*spec.setup, "export MONARCH_NB_PRELOAD=none"))
    kinds = [("ranks without torch", without, "pass"), ("ranks with torch", spec, "import torch")]
    for what, each, program in kinds[spec.engine == "compose" :]:  # hosts that wait run no setup
        command = bare(program)
        rounds = []
        for _ in range(ROUNDS):
            ours = _first_answer(each)
            queued = queue_s()
            rounds.append((ours - queued, took(partial(subprocess.run, command, check=True)), queued))
        ours, floor, queued = (min(times) for times in zip(*rounds, strict=True))
        if queued:
            say(f"{engine}, {what}: in the queue, not counted", queued, "s", "")
        say(
            f"{engine}, {what}: command to first answer", ours, "s", f"at most {1.5 * floor + 1:.2f} s",
            f"interpreter, {program!r} {floor:.2f} s",
        )  # fmt: skip


def _ssh(folder: Path) -> None:
    server = sshd.Sshd(folder / "ssh", ["hb1", "hb2"])
    try:
        spec = HostSpec("ssh", machines=machines("hb1,hb2"), own=(("config", str(server.config)),))
        ssh = ["ssh", "-F", str(server.config), "hb1"]
        _rows("ssh, 2 hosts", spec, lambda p: [*ssh, shlex.join([sys.executable, "-c", p])])
    finally:
        server.close()


def _slurm(folder: Path) -> None:
    (folder / "slurm").mkdir()
    cluster = slurmd.Cluster(folder / "slurm")
    os.environ["SLURM_CONF"] = str(cluster.config)
    try:
        spec = HostSpec("slurm", hosts=HostRange(2, 2), setup=(slurmd.SETUP,))
        srun = ["srun", "--nodes=2", "--ntasks=2", sys.executable, "-c"]
        _rows("slurm, 2 nodes", spec, lambda p: [*srun, p], lambda: _in_queue_s(cluster.folder / "log"))
    finally:
        cluster.close()


BY_RAY = """
import sys, ray
ray.init(sys.argv[1], logging_level="error")
ray.get(ray.remote(lambda code: exec(code)).remote(sys.argv[2]))
"""


def _ray(_folder: Path) -> None:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    program = [sys.executable, str(Path(__file__).parents[1] / "engines" / "ray_cluster.py")]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, f"{program[1]} has ended"
        spec = HostSpec("ray", hosts=HostRange(2, 2), own=(("address", address), ("driver", sys.executable)))
        _rows("ray, 2 nodes", spec, lambda p: [sys.executable, "-c", BY_RAY, address, p])
        ray_program.close_idle()


def _compose(folder: Path) -> None:
    """Hosts that wait already: an interpreter isn't started there, but here."""
    pool = folder / "pool"
    pool.mkdir(0o700)
    wait = "import sys; from monarch_nb._host import pool; sys.exit(pool.wait(sys.argv[1], sys.argv[2]))"
    hosts = [
        subprocess.Popen([sys.executable, "-c", wait, str(pool), name], stdout=subprocess.PIPE)
        for name in ("a", "b")
    ]
    try:
        for host in hosts:
            assert host.stdout is not None and b"waits" in host.stdout.readline()
        spec = HostSpec("compose", hosts=HostRange(2, 2), own=(("directory", str(pool)),))
        _rows("compose, 2 hosts", spec, lambda p: [sys.executable, "-c", p])
    finally:
        for host in hosts:
            host.terminate()
            host.wait(T)


def _in_queue_s(logs: Path) -> float:
    """Return the seconds from the last batch job's submission until a node started its script, by the logs.

    The nodes are given before that, but slurmctld starts scripts once a second; `srun`, which ours is
    compared with, it starts at once.
    """
    ((submitted, job),) = _lines(logs / "ctld", r"_slurm_rpc_submit_batch_job: JobId=(\d+)")[-1:]
    (started,) = (
        when
        for log in logs.glob("d.n*")
        for when, launched in _lines(log, r"Launching batch job (\d+)")
        if launched == job
    )
    return (datetime.fromisoformat(started) - datetime.fromisoformat(submitted)).total_seconds()


def _lines(log: Path, what: str) -> list[tuple[str, str]]:
    """Return the lines of a log of Slurm's that match: when each was written, and the pattern's group."""
    return re.findall(rf"^\[(.+?)\] {what}", log.read_text(), re.MULTILINE)


PARTS: dict[str, Callable[[], None]] = {"loss": loss, "scale": scale, "printed": printed, "engines": engines}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
