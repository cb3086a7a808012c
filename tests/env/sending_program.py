"""Run by the interpreter of a small environment: sends that to hosts, each with a store of its own, and
prints what has come of it as JSON.

usage: sending_program.py SCENARIO FOLDER
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from monarch_nb.actor.handle import placement_of

os.environ["MONARCH_NB_PRELOAD"] = "none"

from monarch_nb._client.session import Session
from monarch_nb._protocol.environment import GetEnvironments
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.ranks import Restart
from monarch_nb.actor import Actor, HostMesh, endpoint
from monarch_nb.job import ProcessJob
from monarch_nb.mesh.shipping import agents, host_broadcast, sending
from monarch_nb.mesh.shipping.agent import SyncAgent, Taken
from monarch_nb.mesh.shipping.progress import Progress
from monarch_nb.mesh.shipping.report import EnvironmentPart

T = 60
send = functools.partial(sending.send_environment, copies=True, donors=False, index=False)
"""These hosts see this machine's files, and would copy nearly all of them: what is shown here is sending."""


class Where(Actor):
    @endpoint
    def prefix(self) -> str:
        return sys.prefix

    @endpoint
    def imports(self, name: str) -> str:
        return str(__import__(name).__file__)


class Corrupting(SyncAgent):
    """What it passes on isn't what it has got: on the first host."""

    def take_pack(self, slot: int, pack: Any, holder: Any, sums: Any) -> Taken:
        found = super().take_pack(slot, pack, holder, sums)
        if os.environ.get("CORRUPTS"):
            self._memories[slot][5] ^= 255
        return found


@contextlib.contextmanager
def hosts(
    folder: Path, num: int, *, num_stores: int = 0, **env: str
) -> Iterator[tuple[Session, list[HostMesh]]]:
    """Start hosts.

    Args:
        num_stores: that they have together; by default each has its own.
        env: of the first one.
    """
    with contextlib.ExitStack() as stack:
        meshes = []
        for i in range(num):
            store = folder / f"host{i % (num_stores or num)}" / "store"
            own = {"MONARCH_NB_STORE": str(store), **(env if not i else {})}
            meshes.append(stack.enter_context(ProcessJob({"hosts": 1}, env=own)).hosts)
        for mesh in meshes:
            mesh.initialized.get(T)
        yield meshes[0]._session, meshes


def indices(meshes: list[HostMesh]) -> list[int]:
    return [host for mesh in meshes for host in placement_of(mesh).hosts]


def told(part: EnvironmentPart) -> dict[str, Any]:
    return {
        "id": part.id,
        "done": part.is_done,
        "lines": part.lines(),
        "corrupting": list(part.corrupting),
        "sent": [h.sent_bytes for h in part.hosts.values()],
        "problems": [h.problem for h in part.hosts.values()],
        "prefixes": [h.prefix for h in part.hosts.values()],
        "shared": [h.is_shared for h in part.hosts.values()],
        "there": [h.was_there for h in part.hosts.values()],
    }


def prefix_of(procs: Any) -> str:
    return procs.spawn("where", Where).prefix.call_one().get(T)


def whole_life(folder: Path) -> dict[str, Any]:
    """A dry run; a sync; ranks from before, new ones, restarted ones; a package more."""
    found: dict[str, Any] = {}
    with hosts(folder, 2) as (session, meshes):
        everywhere = indices(meshes)
        old = meshes[0].spawn_procs()
        found["old"] = prefix_of(old)
        scanned = sending.scan_here()
        found["uncovered"] = list(scanned.left_out)
        found["dry"] = told(send(session, everywhere, scanned, dry_run=True))
        found["written"] = [p.name for p in sorted(folder.iterdir())]
        found["first"] = told(send(session, everywhere, scanned))
        found["new"] = [prefix_of(mesh.spawn_procs()) for mesh in meshes]
        found["old after"] = old.spawn("again", Where).prefix.call_one().get(T)
        session.request(Restart(list(placement_of(old).procs)))
        found["restarted"] = prefix_of(old)
        found["spawned"] = prefix_of(meshes[0].spawn_procs(method="spawn"))
        found["again"] = told(send(session, everywhere, scanned))
        site = Path(next(p for p in sys.path if p.endswith("site-packages")))
        (site / "one_more.py").write_text("X = 1\n" * 1000)
        found["more"] = told(send(session, everywhere, sending.scan_here()))
        found["imported"] = meshes[1].spawn_procs().spawn("w", Where).imports.call_one("one_more").get(T)
        found["in place"] = told(sending.send_environment(session, everywhere, sending.scan_here()))
        found["here again"] = prefix_of(meshes[1].spawn_procs())
        found["known"] = sorted(session.request(GetEnvironments()))
    return found


class AtHalf(Progress):
    """Does something once, when half of it is there."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__()
        self._do, self.is_done = do, threading.Lock()

    def took(self, host: int, num_bytes: int) -> None:
        super().took(host, num_bytes)
        if self.sent_bytes > self.num_bytes / 2 and self.is_done.acquire(blocking=False):
            self._do()


def kill_agent(session: Session, host: int) -> None:
    """Kill the agent of a host."""
    for row in session.request(Status()).procs:
        if row.group.startswith(f"{agents.GROUP}-{host}") and row.state == "running":
            os.kill(row.pid, signal.SIGKILL)


def killed(folder: Path) -> dict[str, Any]:
    """An agent is killed in the middle: its host is named, the other goes on; the next sync takes up where
    it was.
    """
    found: dict[str, Any] = {}
    with hosts(folder, 2) as (session, meshes):
        everywhere, scanned = indices(meshes), sending.scan_here()
        progress = AtHalf(lambda: kill_agent(session, everywhere[1]))
        found["first"] = told(send(session, everywhere, scanned, progress=progress))
        found["second"] = told(send(session, everywhere, scanned))
        found["new"] = [prefix_of(mesh.spawn_procs()) for mesh in meshes]
        found["left"] = [os.listdir(folder / f"host{i}" / "store" / "tmp") for i in range(2)]
    return found


def fill(path: Path) -> None:
    """Leave no byte free where a file is."""
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def full(folder: Path) -> dict[str, Any]:
    """The disk of a host is full in the middle: it's named, the other goes on; with room, the next sync takes
    up where it was.
    """
    found: dict[str, Any] = {}
    stuffing = folder / "host1" / "stuffing"
    with hosts(folder, 2) as (session, meshes):
        everywhere, scanned = indices(meshes), sending.scan_here()
        progress = AtHalf(lambda: fill(stuffing))
        first = send(session, everywhere, scanned, progress=progress)
        stuffing.unlink()
        found["first"] = told(first)
        found["dry"] = told(send(session, everywhere, scanned, dry_run=True))
        found["second"] = told(send(session, everywhere, scanned))
        found["new"] = [prefix_of(mesh.spawn_procs()) for mesh in meshes]
        found["left"] = [os.listdir(folder / f"host{i}" / "store" / "tmp") for i in range(2)]
    return found


def donors(folder: Path) -> dict[str, Any]:
    """Hosts have an environment like ours, in another place: nearly nothing is sent."""
    found: dict[str, Any] = {}
    with hosts(folder, 1) as (session, meshes):
        everywhere, scanned = indices(meshes), sending.scan_here()
        for name, is_dry in (("dry", True), ("first", False)):
            part = sending.send_environment(session, everywhere, scanned, copies=True, dry_run=is_dry)
            found[name] = {**told(part), "found": [h.found_bytes for h in part.hosts.values()]}
            found[f"written {name}"] = (folder / "host0" / "store").exists()
        found["new"] = prefix_of(meshes[0].spawn_procs())
    return found


def from_index(folder: Path) -> dict[str, Any]:
    """A host gets what its package index has like this; the rest is sent."""
    found: dict[str, Any] = {}
    index = {"UV_FIND_LINKS": os.environ["WHEELS"], "UV_OFFLINE": "1", "UV_CACHE_DIR": f"{folder}/uv"}
    with hosts(folder, 1, **index) as (session, meshes):
        part = send(session, indices(meshes), sending.scan_here(), index=True)
        found["first"] = {**told(part), "index": [h.index_bytes for h in part.hosts.values()]}
        found["new"] = prefix_of(meshes[0].spawn_procs())
    return found


def without_links(folder: Path) -> dict[str, Any]:
    """The store of a host is where files can't be linked: it's named, its ranks run as before, the other goes
    on.
    """
    found: dict[str, Any] = {}
    with hosts(folder, 2) as (session, meshes):
        everywhere, scanned = indices(meshes), sending.scan_here()
        found["before"] = prefix_of(meshes[1].spawn_procs())
        found["first"] = told(send(session, everywhere, scanned))
        found["after"] = prefix_of(meshes[1].spawn_procs())
    return found


def corrupting(folder: Path) -> dict[str, Any]:
    """One of three hosts passes on what isn't right."""
    agents.SyncAgent = Corrupting  # type: ignore[misc]
    host_broadcast.NOTEBOOK_FEEDS = 1  # the others read from the first that has it
    with hosts(folder, 3, CORRUPTS="1") as (session, meshes):
        part = send(session, indices(meshes), sending.scan_here())
        return {"first": told(part), "hosts": indices(meshes)}


def one_store(folder: Path) -> dict[str, Any]:
    """Of three hosts, the first and the last have one store; the first one is killed in the middle."""
    found: dict[str, Any] = {}
    with hosts(folder, 3, num_stores=2) as (session, meshes):
        everywhere, scanned = indices(meshes), sending.scan_here()
        found["dry"] = told(send(session, everywhere, scanned, dry_run=True))
        progress = AtHalf(lambda: kill_agent(session, everywhere[0]))
        found["first"] = told(send(session, everywhere, scanned, progress=progress))
        found["all bytes"] = [progress.num_bytes, progress.sent_bytes]
        found["second"] = told(send(session, everywhere, scanned))
        found["new"] = [prefix_of(mesh.spawn_procs()) for mesh in meshes]
        found["objects"] = sum(len(files) for _, _, files in os.walk(folder / "host0" / "store" / "objects"))
    with hosts(folder / "again", 3, num_stores=2) as (session, meshes):
        found["undisturbed"] = told(send(session, indices(meshes), scanned))
        found["undisturbed new"] = [prefix_of(mesh.spawn_procs()) for mesh in meshes]
    return found


if __name__ == "__main__":
    scenarios = {
        "one_store": one_store,
        "whole_life": whole_life,
        "killed": killed,
        "full": full,
        "donors": donors,
        "from_index": from_index,
        "without_links": without_links,
        "corrupting": corrupting,
    }
    print(json.dumps(scenarios[sys.argv[1]](Path(sys.argv[2]))))
