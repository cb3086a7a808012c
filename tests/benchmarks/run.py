"""Our figures beside the floor of this machine, in one run: `make bench`.

Each of ours is measured in turn with its baseline, several times, so that a slow minute hits both; the medians are printed with their
ratio and the aim. Nothing here is a test: figures depend on the machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import raw
import torch
from bench_actor import Bench

from monarch_nb.actor import SupervisionError, shutdown_context, this_host

ROUNDS = 3
MIB = 1 << 20


class Table:
    """Rows of figure, baseline, ratio and aim."""

    def __init__(self) -> None:
        print(f"{'what':<52} {'ours':>12} {'floor':>12} {'ratio':>7}  aim")

    @staticmethod
    def ratio(what: str, unit: str, pairs: list[tuple[float, float]], aim: str) -> None:
        ours, floor = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{what:<52} {ours:>9.3g} {unit:<2} {floor:>9.3g} {unit:<2} {ours / floor:>6.2f}x  {aim}", flush=True)

    @staticmethod
    def value(what: str, unit: str, values: list[float], aim: str, floor: float | None = None) -> None:
        base = "" if floor is None else f"{floor:.3g} {unit}"
        print(f"{what:<52} {statistics.median(values):>9.3g} {unit:<2} {base:>12} {'':>7}  {aim}", flush=True)


def calls(table: Table) -> None:
    """Round trip, fan-out, pipelined calls, broadcast of a tensor, memory, a killed rank."""
    procs = this_host().spawn_procs({"gpus": 8})
    actor: Any = procs.spawn("bench", Bench)
    actor.noop.call().get()
    one = actor.slice(gpus=0)
    floor_one, floor_all = raw.RawZmq(1), raw.RawZmq(8)
    measure = raw.median_us
    table.ratio("call_one().get(), round trip", "us", [
        (measure(lambda: one.noop.call_one().get(), 2000), measure(floor_one.call_one, 2000)) for _ in range(ROUNDS)
    ], "1.6x")  # fmt: skip
    table.ratio("no-op to 8 ranks and back", "us", [
        (measure(lambda: actor.noop.call().get(), 500), measure(floor_all.call_all, 500)) for _ in range(ROUNDS)
    ], "2.5x")  # fmt: skip
    table.ratio("20,000 pipelined no-op calls", "s", [
        (pipelined(one), floor_one.pipelined(20_000)) for _ in range(ROUNDS)
    ], "8x")  # fmt: skip
    floor_one.close()
    floor_all.close()
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8)
    table.ratio("64 MiB tensor to 8 ranks", "ms", [
        (measure(lambda: actor.last.call(tensor).get(), 10, warm=3) / 1e3, raw.memory_copy_ms(64 * MIB))
        for _ in range(ROUNDS)
    ], "1.5x")  # fmt: skip
    pids = list(procs.execute(os.getpid).get().values())
    table.value("memory of 8 idle ranks, PSS", "GB", [sum(map(pss_bytes, pids)) / 1e9], "0.35 GB")
    table.value(
        "SIGKILL of a rank to the exception in the caller", "ms", [killed(procs, actor, i) for i in range(1, 4)],
        "50 ms", raw.killed_child_ms(),
    )  # fmt: skip
    procs.stop(grace_s=0.0).get()


def pipelined(one: Any, num: int = 20_000, window: int = 1000) -> float:
    start = time.perf_counter()
    for _ in range(num // window):
        futures = [one.noop.call_one() for _ in range(window)]
        for future in futures:
            future.get()
    return time.perf_counter() - start


def pss_bytes(pid: int) -> int:
    """Return a process' proportional share of memory."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))


def killed(procs: Any, actor: Any, rank: int) -> float:
    alive = actor.slice(gpus=slice(rank, 8))
    pid = procs.slice(gpus=rank).execute(os.getpid).get().item()
    future = alive.sleep.call(0.3)
    start = time.perf_counter()
    os.kill(pid, 9)
    try:
        future.get()
    except SupervisionError:
        return (time.perf_counter() - start) * 1e3
    raise AssertionError("a killed rank was not noticed")


def start_mesh(num: int, warm: bool) -> float:
    """Return the seconds from `%mesh start` to the first answer, in a fresh program; with `warm`, after %load_ext has warmed up."""
    code = (
        "import sys, time\n"
        "from monarch_nb import mesh\n"
        "from monarch_nb._client import spare, session, launch\n"
        f"warm = {warm}\n"
        "if warm:\n"
        "    spare.prepare(); spare._starting.join()\n"
        "    s = session.Session.connect(spare._ready)\n"
        "    while not s.request('status')['warm']: time.sleep(0.05)\n"
        "    s.office.close()\n"
        "start = time.perf_counter()\n"
        f"m = mesh.start('bench', {{'gpus': {num}}})\n"
        "m.execute(int).get(60)\n"
        "print(time.perf_counter() - start)\n"
        "m.stop(grace_s=0.0).get(60)\n"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def starts(table: Table) -> None:
    """Start-up, from nothing and after `%load_ext`."""
    for num, aim in ((8, "1 s"), (32, "2 s")):
        table.ratio(f"{num} ranks with torch, `%mesh start` to first answer", "s", [
            (start_mesh(num, warm=True), raw.fork_with_torch(num)) for _ in range(ROUNDS)
        ], aim)  # fmt: skip
        table.ratio("   the same, nothing warmed up", "s", [
            (start_mesh(num, warm=False), raw.fork_with_torch(num)) for _ in range(ROUNDS)
        ], "")  # fmt: skip


def main() -> None:
    parts: dict[str, Callable[[Table], None]] = {"starts": starts, "calls": calls}
    table = Table()
    for name in sys.argv[1:] or parts:
        parts[name](table)
    shutdown_context().get()


if __name__ == "__main__":
    main()
