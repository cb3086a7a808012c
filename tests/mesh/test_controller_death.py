"""A controller that is killed: everybody who is connected hears of it at once, in one sentence, and nothing
is left of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from own_meshes import own_mesh
from processes import wait_for_exit
from sample_actors import Counter, Faulty
from waiting import wait_until

from monarch_nb import mesh as meshes
from monarch_nb._client import launch
from monarch_nb._client import session as sessions
from monarch_nb._protocol.programs import Status
from monarch_nb.actor import Channel
from monarch_nb.exceptions import MeshEnded, MeshError, MeshNotFound
from monarch_nb.mesh import Mesh

PRELOAD = "none"
T = 60
PATIENCE_S = 30.0
SENTENCE = (
    r"^mesh 'doomed' has ended: its controller process \(pid \d+ on \S+\) was killed by SIGKILL, and "
    r"its 2 ranks and what they held are lost; "
    r"start it anew: %mesh start doomed; what ran on it: monarch-nb history doomed$"
)


@pytest.fixture
def doomed() -> Iterator[Mesh]:
    """A named mesh of two ranks, which the test may kill."""
    before = sessions._current
    mesh = meshes.start("doomed", {"procs": 2})
    session = mesh._session
    yield mesh
    if not session.transport.lost:
        mesh.stop().get(T)
    session.close()
    sessions._current = before


def controller_of(mesh: Mesh) -> int:
    return mesh.status(fresh=False).pid


def kill(mesh: Mesh) -> int:
    pid = controller_of(mesh)
    os.kill(pid, signal.SIGKILL)
    assert wait_for_exit(pid)
    return pid


def is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def sleep_long() -> None:
    time.sleep(600)


def test_whatever_is_in_flight_raises_the_sentence(doomed: Mesh) -> None:
    actors = doomed.spawn("faulty", Faulty)
    actors.initialized.get(T)
    future = doomed.execute(sleep_long)
    one = actors.slice(procs=0).sleep.call_one(600.0)
    stream = iter(actors.sleep.stream(600.0))
    cell = doomed.submit("import time; time.sleep(600)")
    _, receiver = Channel.open()
    received = receiver.recv()
    found: dict[str, BaseException | None] = {}

    def wait(name: str, get: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                get()
            except BaseException as error:
                found[name] = error

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    async def awaited(what: Any) -> Any:
        return await what

    threads = [
        wait("future", lambda: future.get(T)),
        wait("one", lambda: one.get(T)),
        wait("stream", lambda: next(stream).get(T)),
        wait("cell", lambda: cell.wait(T)),
        wait("channel", lambda: received.get(T)),
        wait("await", lambda: asyncio.run(awaited(doomed.execute(sleep_long)))),
        wait("await channel", lambda: asyncio.run(awaited(receiver.recv()))),
        wait("beside", lambda: future.result(T)),
    ]
    kill(doomed)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert set(found) == {"future", "one", "stream", "cell", "channel", "await", "await channel", "beside"}
    for name, error in found.items():
        assert isinstance(error, MeshEnded), (name, error)
        assert re.fullmatch(SENTENCE, str(error)), (name, str(error))


def test_whatever_is_tried_afterwards_raises_the_same(doomed: Mesh) -> None:
    actors = doomed.spawn("counter", Counter, 0)
    actors.initialized.get(T)
    kill(doomed)
    wait_until(lambda: doomed._transport.lost, "this program hears of it")
    _, receiver = Channel.open()
    tries: dict[str, Callable[[], Any]] = {
        "status": doomed.status,
        "run": lambda: doomed.run("1"),
        "submit": lambda: doomed.submit("1").wait_for_number(T),
        "execute": lambda: doomed.execute(os.getpid).get(T),
        "spawn": lambda: doomed.spawn("other", Counter, 0),
        "call": lambda: actors.get.call().get(T),
        "one": lambda: actors.slice(procs=0).get.call_one().get(T),
        "stream": lambda: list(actors.get.stream()),
        "broadcast": actors.increment.broadcast,
        "push": lambda: doomed.push({"x": 1}),
        "pull": lambda: doomed.pull("x"),
        "vars": doomed.vars,
        "history": doomed.history,
        "logs": lambda: list(doomed.journal.logs([0])),
        "heal": doomed.heal,
        "resize": lambda: doomed.resize(procs=3),
        "restart": lambda: doomed.restart([0]),
        "interrupt": doomed.interrupt,
        "stacks": doomed.stacks,
        "why": doomed.why,
        "lease": lambda: doomed.set_lease(5.0),
        "healthy": doomed.healthy,
        "channel": lambda: receiver.recv().get(T),
        "watch": lambda: doomed.watch_status(lambda _change: None),
    }
    for name, function in tries.items():
        with pytest.raises(MeshError) as raised:
            function()
        assert isinstance(raised.value, MeshEnded), (name, raised.value)
        assert re.fullmatch(SENTENCE, str(raised.value)), (name, str(raised.value))
        assert raised.value._render_traceback_() == [f"MeshEnded: {raised.value}"]  # type: ignore[attr-defined]


def test_nothing_is_left_and_the_name_is_free(doomed: Mesh) -> None:
    pids = processes_of(doomed)
    assert len(pids) == 4, "controller, zygote, two ranks"
    directory = os.path.dirname(doomed._transport.directory)
    assert os.path.isdir(directory)
    controller = kill(doomed)
    assert [c.name for c in launch.list_connections()].count("doomed") == 0, "not even while it's a zombie"
    with pytest.raises(MeshNotFound, match=r"mesh 'doomed' is not running\. Start it: %mesh start doomed"):
        meshes.attach("doomed")
    for pid in pids:
        assert wait_for_exit(pid), f"process {pid} is left"
    wait_until(
        lambda: not is_there(controller), "the program that has started the controller takes its zombie away"
    )
    wait_until(lambda: not os.path.exists(directory), "the sockets go")
    with own_mesh("doomed", {"procs": 1}) as again:
        assert again.execute(lambda: 7).get(T).item() == 7


def processes_of(mesh: Mesh) -> set[int]:
    registry = mesh._session.request(Status())
    return {registry.pid, registry.zygote_pid or 0, *(row.pid for row in registry.procs)}


LOOKER = """
import os, signal, sys
import monarch_nb
mesh = monarch_nb.attach("doomed")
if sys.argv[1] == "compares":  # what hosts have, in the background; the controller doesn't get to answer
    from monarch_nb.mesh import drift
    os.kill(mesh.status().pid, signal.SIGSTOP)
    drift.compare_newcomers(mesh._session, [0])
    while not any(p.waited for p in list(mesh._transport._pending.values())): pass
print("attached", flush=True)
if sys.argv[1] == "waits":
    try:
        mesh.execute(lambda: __import__("time").sleep(600)).get()
    except monarch_nb.exceptions.MeshError as error:
        print(type(error).__name__, error, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["waits", "idle", "compares"])
def test_another_program_hears_of_it_once(doomed: Mesh, how: str) -> None:
    pid = controller_of(doomed)
    other = subprocess.Popen(
        [sys.executable, "-c", LOOKER, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None and other.stderr is not None
    assert other.stdout.readline() == "attached\n"
    if how == "waits":
        wait_until(lambda: all(r.state == "busy" for r in doomed.status().ranks), "the ranks are at work")
    os.kill(pid, signal.SIGKILL)
    assert wait_for_exit(pid)
    line = (other.stdout if how == "waits" else other.stderr).readline().rstrip("\n")
    assert re.fullmatch(SENTENCE, line.removeprefix("MeshEnded ")), line
    rest, error = other.communicate("\n", T)
    assert (other.returncode, rest, error) == (0, "", "")


def test_who_stops_it_is_named_to_the_others(doomed: Mesh, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import monarch_nb; monarch_nb.attach('doomed').stop().get(30)"
    stopper = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=T, check=True
    )
    assert stopper.stderr == ""
    wait_until(lambda: doomed._transport.lost, "this program hears of it")
    expected = (
        r"^mesh 'doomed' was stopped by -c \(pid \d+\); start it anew: %mesh start doomed; "
        r"what ran on it: monarch-nb history doomed$"
    )
    with pytest.raises(MeshEnded, match=expected):
        doomed.status()
    output: list[str] = []
    wait_until(
        lambda: output.append(capfd.readouterr().err) or "was stopped by" in "".join(output),
        "it's said, as nobody waits",
    )  # type: ignore[func-returns-value]


def test_a_script_ends_well_after_its_mesh(doomed: Mesh) -> None:
    code = (
        "import os, signal, sys, monarch_nb\nmesh = monarch_nb.attach('doomed')\n"
        "os.kill(mesh.status().pid, signal.SIGKILL)\ntry:\n    while True: "
        "mesh.execute(os.getpid).get()\nexcept monarch_nb.exceptions.MeshEnded as error:\n    "
        "print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=T, check=True)
    assert re.fullmatch(SENTENCE, ran.stdout.strip())
    assert ran.stderr == ""


PRIVATE = """
import json, os, signal
from monarch_nb.actor import this_host
from monarch_nb._client import session
procs = this_host().spawn_procs({"gpus": 2})
procs.execute(os.getpid).get(60)
controller = session.current().connection.pid
os.kill(controller, signal.SIGKILL)
texts = []
for _ in range(2):
    try:
        while True:
            procs.execute(os.getpid).get(60)
    except session.MeshError as error:
        texts.append(f"{type(error).__name__}: {error}")
again = this_host().spawn_procs({"gpus": 1})
print(json.dumps({"texts": texts, "value": again.execute(lambda: 7).get(60).item(), "other":
session.current().connection.pid != controller}))
"""


def test_a_program_that_loses_its_private_mesh_gets_another() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PRIVATE], capture_output=True, text=True, timeout=T, check=True
    )
    found = json.loads(ran.stdout)
    assert (found["value"], found["other"]) == (7, True)
    assert found["texts"][0].startswith("MeshEnded: the controller process of this program's ranks (pid ")
    assert "was killed by SIGKILL" in found["texts"][0]


def test_starting_and_stopping_leaves_no_descriptor_and_no_zombie() -> None:
    before = sessions._current
    zombies = _zombies()
    counts = []
    controllers = []
    for _ in range(3):
        mesh = meshes.start("counted", {"procs": 1}, num_hosts=1)
        controllers.append(controller_of(mesh))
        mesh.stop().get(T)
        wait_until(lambda: not any(is_there(pid) for pid in controllers), "zombies are taken away")
        counts.append(len(os.listdir("/proc/self/fd")))
    sessions._current = before
    assert counts[2] <= max(counts[:2]), f"descriptors: {counts}"  # a thread may have one for a moment
    wait_until(lambda: not _zombies() - zombies, "none of the children that ended is a zombie")


def _zombies() -> set[str]:
    """Return the children of this process that have ended and that nobody has waited for."""
    found = set()
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        for pid in file.read().split():
            with suppress(OSError), open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    found.add(pid)
    return found
