"""An environment on its way to hosts: rows of `bench_sync.py`, which runs this by the interpreter of the
environment that is sent.

usage: sync_environment.py FOLDER HOSTS EDITS
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "env"))
from sending_program import hosts, indices

from monarch_nb._client.session import Session
from monarch_nb._host.warming import start_zygote
from monarch_nb._protocol.environment import GetEnvironments, RankEnvironment, UseEnvironments
from monarch_nb._sync.env.cache import HashCache
from monarch_nb._sync.env.interpreter import this_interpreter
from monarch_nb._sync.env.layers import find_layers
from monarch_nb._sync.env.scan import Scanned, scan
from monarch_nb._sync.env.snapshot import Snapshots
from monarch_nb.mesh.shipping import FollowedEnvironment, patch_environment, scan_here, sending
from monarch_nb.mesh.shipping.report import EnvironmentPart

SWITCH_S = 150.0
NUM_AGAIN = 5
HAS_RSYNC = shutil.which("rsync") is not None
os.environ["MONARCH_NB_PRELOAD"] = "torch"
"""As for users, whose zygotes have loaded what agents need."""
send = functools.partial(sending.send_environment, copies=True, donors=False)
"""Every host gets a copy, and takes nothing from folders that it sees on this machine."""


def row(what: str, seconds: float, limit: str = "") -> None:
    """Print a figure, and what it's to be at most."""
    print(f"{what:<76} {seconds * 1e3:11.3f} ms  {limit}", flush=True)


def timed(do: Callable[[], Any]) -> float:
    """Return how many seconds something takes, once nothing waits to be written to disk."""
    os.sync()
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def cpu_s(do: Callable[[], Any]) -> float:
    """Return how many seconds of CPU something takes in this process."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    do()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def manifests(folder: Path) -> Scanned:
    """Print what a manifest costs, cold and warm; return it."""
    found, cache = find_layers(this_interpreter()), str(folder / "manifest.sqlite")
    snapshots = Snapshots(str(folder / "scans"))
    scanned = scan_here()
    num = sum(len(part.entries) for part in scanned.parts.values())
    print(f"{num:,} files, {scanned.num_bytes / 1e6:,.0f} MB")
    row("manifest, cold (CPU)", cpu_s(lambda: scan(found, HashCache(cache))))
    for what, how, limit in (
        ("manifest, some file has changed, all hashes known (CPU)", {"verify": False}, ""),
        ("manifest, nothing has changed (CPU)", {"snapshots": snapshots}, ": 1 s"),
    ):
        scan(found, HashCache(cache), **how)
        taken = min(cpu_s(functools.partial(scan, found, HashCache(cache), **how)) for _ in range(NUM_AGAIN))
        row(what, taken, f"50,000 files: {taken * 50_000 / num:.2f} s{limit}")
    return scan_here()


def copying(*commands: Sequence[str]) -> float:
    """Return how many seconds commands take, all at once."""

    def run() -> None:
        running = [subprocess.Popen(command) for command in commands]
        codes = [process.wait() for process in running]
        assert not any(codes), commands

    return timed(run)


def floors(folder: Path, prefix: str) -> tuple[float, float]:
    """Print what copying the same files takes, the first time and again; return rsync's, or cp's where
    there's no rsync.

    Args:
        prefix: what was made of the environment on a host.
    """
    first = again = copying(("cp", "-a", prefix, str(folder / "copied")))
    row("cp -a of the same files, one file system, unverified", first)
    if HAS_RSYNC:
        command = ("rsync", "-a", f"{prefix}/", str(folder / "synced"))
        first, again = copying(command), min(copying(command) for _ in range(NUM_AGAIN))
        row("rsync -a of them, one file system, unverified", first)
        row("rsync -a again, nothing changed", again)
    else:
        print("rsync isn't installed here: cp -a stands for it (apt-get install rsync)")
    peers(folder)
    for name in ("copied", "synced", "packed.tar", "unpacked", "uv"):
        subprocess.run(["rm", "-rf", str(folder / name)], check=True)
    return first, again


def floor_of_several(folder: Path, prefix: str, num: int) -> float:
    """Print what copying the same files to several places at once takes; return it."""
    targets = [str(folder / f"copy{i}") for i in range(num)]
    if HAS_RSYNC:
        taken = copying(*[("rsync", "-a", f"{prefix}/", target) for target in targets])
    else:
        taken = copying(*[("cp", "-a", prefix, target) for target in targets])
    row(f"{'rsync' if HAS_RSYNC else 'cp'} -a to {num} places at once", taken)
    subprocess.run(["rm", "-rf", *targets], check=True)
    return taken


def peers(folder: Path) -> None:
    """Print what others take for an environment, where they are installed."""
    for program, how in (("conda-pack", "pip install conda-pack"), ("uv", "pip install uv")):
        if shutil.which(program) is None:
            print(f"{program} isn't installed here: no figure of that peer ({how})")
    frozen = folder / "requirements.txt"
    prefix = os.environ.get("CONDA_PREFIX", "")
    if shutil.which("conda-pack") and prefix:
        archive, unpacked = str(folder / "packed.tar"), str(folder / "unpacked")
        os.mkdir(unpacked)
        pack = ["conda-pack", "-q", "-p", prefix, "-o", archive, "--ignore-editable-packages"]
        packing = timed(lambda: subprocess.run(pack, check=True))
        row("conda-pack of the active conda environment", packing)
        unpack = timed(lambda: subprocess.run(["tar", "-xf", archive, "-C", unpacked], check=True))
        row("tar -x of that", unpack)
    if shutil.which("uv"):
        pins = subprocess.run(
            ["uv", "pip", "freeze", "-q", "--exclude-editable", "-p", sys.executable],
            capture_output=True,
            text=True,
        )
        frozen.write_text(pins.stdout)
        venv = str(folder / "uv")
        subprocess.run(["uv", "venv", "-q", venv], check=True)
        command = ["uv", "pip", "sync", "-q", "--offline", "-p", venv, str(frozen)]
        done: list[int] = []
        taken = timed(lambda: done.append(subprocess.run(command, capture_output=True).returncode))
        if done == [0]:
            row("uv pip sync of its packages, from uv's cache", taken)
        else:
            print("uv pip sync: its cache hasn't all packages: no figure of that peer")


def first_syncs(session: Session, everywhere: list[int], scanned: Scanned, folder: Path) -> float:
    """Print what the first sync takes to one host, to others with a store each, and what a second one takes.
    Return the first figure in seconds.
    """
    done: list[EnvironmentPart] = []
    one = timed(lambda: done.append(send(session, everywhere[:1], scanned)))
    assert done[0].is_done, done[0].lines()
    prefix = done[0].hosts[everywhere[0]].prefix
    floor = floors(folder, prefix)
    row(
        "first sync to one host, placed, tried, its zygote new",
        one,
        f"{one / floor[0]:.2f} x the floor: 1.3 x",
    )
    others = everywhere[1:]
    if others:
        several = timed(lambda: done.append(send(session, others, scanned)))
        assert done[-1].is_done, done[-1].lines()
        plain = floor_of_several(folder, prefix, len(others))
        row(
            f"the same to {len(others)} others at once, with a store each",
            several,
            f"{several / one:.2f} x one host; {several / plain:.2f} x the floor",
        )
    seconds = [
        timed(lambda: done.append(send(session, everywhere[:1], scan_here()))) for _ in range(NUM_AGAIN)
    ]
    sent = sum(host.sent_bytes for host in done[-1].hosts.values())
    row(
        "second sync of an equal environment",
        min(seconds),
        f"{min(seconds) / floor[1]:.2f} x the floor: 1.5 x; {sent} bytes",
    )
    return one


def hosts_of_one_store(folder: Path, num: int, scanned: Scanned, one: float) -> None:
    """Print what the first sync takes to host processes of one user on one machine: they have one store."""
    with hosts(folder, num, num_stores=1) as (session, meshes):
        done: list[EnvironmentPart] = []
        several = timed(lambda: done.append(send(session, indices(meshes), scanned)))
        assert done[0].is_done, done[0].lines()
        row(f"the same to {num} at once, on one machine", several, f"{several / one:.2f} x one host: 2 x")


def edits(session: Session, host: int, num: int) -> None:
    """Print what a followed environment costs: before a cell, and from an edit to the new prefix."""
    site = Path(next(path for path in sys.path if path.endswith("site-packages")))
    (site / "edited_often.py").write_text("VERSION = 0\n")
    followed = FollowedEnvironment(copies=True)

    def bring() -> EnvironmentPart | None:
        return followed.bring_changes(
            session,
            lambda scanned: send(session, [host], scanned),
            lambda edit, before: patch_environment(session, [host], edit, before),
        )

    bring()
    idle = statistics.median([timed(followed.has_changed) for _ in range(2000)])
    row("before a cell, environment watched, nothing changed", idle, "0.1 ms")
    placed, switched = [], []
    for version in range(1, num + 1):
        followed.wait_for_spares()  # nobody saves twice within a second
        (site / "edited_often.py").write_text(f"VERSION = {version}\n")
        start = time.perf_counter()
        assert followed.has_changed()
        part = bring()
        seconds = time.perf_counter() - start
        assert part is not None and part.is_done
        placed.append(seconds - part.seconds + part.placed_s)
        switched.append(seconds)
    row(
        "one edited file, watched: from the save to the new prefix, tried",
        statistics.median(placed),
        "300 ms",
    )
    row("the same, until its zygote is new", statistics.median(switched))
    followed.close()


def zygotes(session: Session, host: int, folder: Path, scanned: Scanned) -> None:
    """Print how long a host takes to have a zygote in another environment, beside the start of a zygote."""
    (folder / "zygote").mkdir()
    start = time.perf_counter()
    zygote = start_zygote([path for path in sys.path if path], str(folder / "zygote"))
    zygote.link.recv(1 << 16)
    floor = time.perf_counter() - start
    zygote.link.close()
    zygote.process.kill()
    zygote.process.wait()
    row("start of a zygote", floor)
    there = session.request(GetEnvironments())[host]
    here = RankEnvironment(scanned.manifest.id, sys.executable, tuple(sys.path))
    seconds = []
    for environment in (here, there, here, there):
        seconds.append(timed(lambda: session.request(UseEnvironments({host: environment}), SWITCH_S)))  # noqa: B023
    switch = statistics.median(seconds)
    row("new zygote after a switch", switch, f"start + {(switch - floor) * 1e3:.0f} ms: start + 200 ms")


def main(folder: Path, num_hosts: int, num_edits: int) -> None:
    """Print all rows."""
    scanned = manifests(folder)
    with hosts(folder / "hosts", num_hosts + 1) as (session, meshes):
        everywhere = indices(meshes)
        one = first_syncs(session, everywhere, scanned, folder)
        edits(session, everywhere[0], num_edits)
        zygotes(session, everywhere[0], folder, scanned)
    if num_hosts:
        hosts_of_one_store(folder / "together", num_hosts, scanned, one)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
