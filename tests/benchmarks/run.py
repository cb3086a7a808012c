"""Our figures beside the floor of this machine, in one run: `make bench`.

Each of ours is measured in turn with its baseline, several times, so that a slow minute hits both; the
medians are printed with their ratio and the aim. Nothing here is a test: figures depend on the machine.
"""

from __future__ import annotations

import compileall
import contextlib
import io
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))

import bench_lines
import numpy
import raw
import torch
from bench_actor import Bench, wait_until_warm

from monarch_nb.actor import SupervisionError, shutdown_context, this_host

ROUNDS = 3
SCRIPT_ROUNDS = 9
"""An interpreter's start differs from time to time by a third."""
CALL_ROUNDS = 9
"""Many short rounds in turn: how long a wake-up takes depends on which cores two processes have just then."""
MIB = 1 << 20


class Table:
    """Rows of figure, baseline, ratio and aim."""

    def __init__(self) -> None:
        print(f"{'what':<52} {'ours':>12} {'floor':>12} {'ratio':>7}  aim")

    @staticmethod
    def ratio(what: str, unit: str, pairs: list[tuple[float, float]], aim: str) -> None:
        ours, floor = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{what:<52} {ours:>9.3g} {unit:<2} {floor:>9.3g} {unit:<2} {ours / floor:>6.2f}x  {aim}",
            flush=True,
        )

    @staticmethod
    def value(what: str, unit: str, values: list[float], aim: str, floor: float | None = None) -> None:
        base = "" if floor is None else f"{floor:.3g} {unit}"
        print(f"{what:<52} {statistics.median(values):>9.3g} {unit:<2} {base:>12} {'':>7}  {aim}", flush=True)


def calls(table: Table) -> None:
    """Round trip, fan-out, pipelined calls, broadcast of a tensor, memory, a killed rank."""
    procs = this_host().spawn_procs({"gpus": 8})
    actor: Any = procs.spawn("bench", Bench)
    actor.noop.call().get()
    wait_until_warm()
    one = actor.slice(gpus=0)
    floor = raw.RawZmq(8)
    measure = raw.median_us
    table.ratio(
        "call_one().get(), round trip",
        "us",
        [
            (measure(lambda: one.noop.call_one().get(), 500), measure(floor.call_one, 500))
            for _ in range(CALL_ROUNDS)
        ],
        "1.3x",
    )
    ranks = list(procs.execute(os.getpid).get().values())
    table.ratio(
        "   CPU of both processes for that",
        "us",
        [
            (cpu_us(lambda: one.noop.call_one().get(), ranks[:1]), cpu_us(floor.call_one, floor.pids[:1]))
            for _ in range(ROUNDS)
        ],
        "",
    )
    beside_unix_sockets(table, one, actor)
    fan_out(table, actor, ranks, floor)
    table.ratio("20,000 pipelined no-op calls", "s", [
        (pipelined(one), floor.pipelined(20_000)) for _ in range(CALL_ROUNDS)
    ], "3x")  # fmt: skip
    table.ratio(
        "   CPU of both processes for one of them",
        "us",
        [
            (
                cpu_us(lambda: pipelined(one, 1000), ranks[:1], 10) / 1e3,
                cpu_us(lambda: floor.pipelined(1000), floor.pids[:1], 10) / 1e3,
            )
            for _ in range(ROUNDS)
        ],
        "",
    )
    floor.close()
    for what, small in (("a tensor", torch.zeros(256)), ("an array", numpy.zeros(128))):
        table.ratio(
            f"a call with 1 KiB in {what}, beside one without",
            "us",
            [
                (
                    measure(lambda x=small: one.take.call_one(x).get(), 2000),
                    measure(lambda: one.take.call_one(1).get(), 2000),
                )
                for _ in range(ROUNDS)
            ],
            "1.5x",
        )
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8)
    table.ratio("64 MiB tensor to 8 ranks", "ms", [
        (measure(lambda: actor.last.call(tensor).get(), 10, warm=3) / 1e3, raw.memory_copy_ms(64 * MIB))
        for _ in range(ROUNDS)
    ], "1.5x")  # fmt: skip
    pids = list(procs.execute(os.getpid).get().values())
    table.value("memory of 8 idle ranks, PSS", "GB", [sum(map(pss_bytes, pids)) / 1e9], "0.35 GB")
    table.value(
        "SIGKILL of a rank to the exception in the caller",
        "ms",
        [killed(procs, actor, i) for i in range(1, 4)],
        "50 ms",
        raw.killed_child_ms(),
    )
    procs.stop(grace_s=0.0).get()


def beside_unix_sockets(table: Table, one: Any, actor: Any) -> None:
    """The same calls beside a stricter floor: what our own messages go by, with nothing on top."""
    floor = raw.RawUnix(8)
    for what, ours, theirs in (
        ("   round trip, beside raw unix sockets", lambda: one.noop.call_one().get(), floor.call_one),
        ("   8 ranks and back, beside raw unix sockets", lambda: actor.noop.call().get(), floor.call_all),
    ):
        pairs = [(raw.median_us(ours, 300), raw.median_us(theirs, 300)) for _ in range(CALL_ROUNDS)]
        table.ratio(what, "us", pairs, "")
    floor.close()


def fan_out(table: Table, actor: Any, ranks: Sequence[int], floor: raw.RawZmq) -> None:
    """A no-op to all ranks and back, in time and in CPU."""
    num, num_calls = len(ranks), 2000 // len(ranks)
    table.ratio(f"no-op to {num} ranks and back", "us", [
        (raw.median_us(lambda: actor.noop.call().get(), num_calls), raw.median_us(floor.call_all, num_calls))
        for _ in range(CALL_ROUNDS)
    ], "1.6x")  # fmt: skip
    table.ratio(
        f"   CPU of all {num + 1} processes for that",
        "us",
        [
            (cpu_us(lambda: actor.noop.call().get(), ranks), cpu_us(floor.call_all, floor.pids))
            for _ in range(ROUNDS)
        ],
        "",
    )


def many_ranks(table: Table) -> None:
    """A no-op to 32 ranks: on most machines more processes than cores."""
    procs = this_host().spawn_procs({"gpus": 32})
    actor: Any = procs.spawn("bench", Bench)
    ranks = list(procs.execute(os.getpid).get().values())
    actor.noop.call().get()
    wait_until_warm()
    floor = raw.RawZmq(32)
    fan_out(table, actor, ranks, floor)
    floor.close()
    procs.stop(grace_s=0.0).get()


def cpu_us(function: Callable[[], object], pids: Sequence[int], num: int = 500) -> float:
    """Return the CPU that a call takes here and in other processes: what it costs where there are fewer
    cores than ranks.
    """

    def used_s() -> float:
        return time.process_time() + sum(time.clock_gettime(cpu_clock(pid)) for pid in pids)

    before = used_s()
    for _ in range(num):
        function()
    return (used_s() - before) / num * 1e6


def cpu_clock(pid: int) -> int:
    """Return Linux' clock of the CPU time of a process, all threads, in nanoseconds."""
    return (~pid << 3) | 2


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
    """Return the seconds from `%mesh start` to the first answer, in a fresh program; with `warm`, after
    %load_ext has warmed up.
    """
    code = (
        "import sys, time\n"
        "from monarch_nb import mesh\n"
        "from monarch_nb._client import spare, session, launch\n"
        "from monarch_nb._protocol.programs import Status\n"
        f"warm = {warm}\n"
        "if warm:\n"
        "    spare.prepare(); spare._starting.join()\n"
        "    s = session.Session.connect(spare._ready)\n"
        "    while not s.request(Status()).warm: time.sleep(0.05)\n"
        "    s.transport.close()\n"
        "start = time.perf_counter()\n"
        f"m = mesh.start('bench', {{'gpus': {num}}})\n"
        "m.execute(int).get(60)\n"
        "print(time.perf_counter() - start)\n"
        "m.stop(grace_s=0.0).get(60)\n"
    )
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


SCRIPT = """
from monarch_nb.actor import this_host
procs = this_host().spawn_procs({"gpus": 8})
procs.execute(int).get(60)
print(flush=True)
input()
"""


def run_script(folder: str) -> float:
    """Return the seconds from the start of a script to 8 ranks of it that have answered."""
    path = Path(folder, "script.py")
    path.write_text(SCRIPT)
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"MONARCH_NB_WARM": "off"},
    )
    assert process.stdout is not None
    process.stdout.readline()
    seconds = time.perf_counter() - start
    process.communicate(b"\n")
    return seconds


def run_script_warm(folder: str) -> float:
    """Return the same after `monarch-nb warm`."""
    warm = [sys.executable, "-m", "monarch_nb", "warm"]
    subprocess.run(warm, check=True, capture_output=True)
    try:
        return run_script(folder)
    finally:
        subprocess.run([*warm, "--stop"], check=True, capture_output=True)


def scripts(table: Table) -> None:
    """A script from its start to its ranks' answers, all as installed: with bytecode, as torch has it
    (else each process compiles us anew).
    """
    import monarch_nb

    compileall.compile_dir(Path(monarch_nb.__file__).parent, quiet=1)
    # A runtime directory of its own: what this user keeps warm is neither taken nor ended.
    with tempfile.TemporaryDirectory(prefix="mnb-") as folder, patch.dict(os.environ, XDG_RUNTIME_DIR=folder):
        rounds = [
            (raw.fork_with_torch(8), run_script(folder), run_script_warm(folder))
            for _ in range(SCRIPT_ROUNDS)
        ]
    table.ratio(
        "fresh script, torch imported, to 8 answering ranks",
        "s",
        [(cold, floor) for floor, cold, _ in rounds],
        "1.3x",
    )
    table.ratio(
        "   the same after `monarch-nb warm`", "s", [(warm, floor) for floor, _, warm in rounds], "0.5 s"
    )


def starts(table: Table) -> None:
    """Start-up, from nothing and after `%load_ext`."""
    for num, aim in ((8, "1 s"), (32, "2 s")):
        table.ratio(f"{num} ranks with torch, `%mesh start` to first answer", "s", [
            (start_mesh(num, warm=True), raw.fork_with_torch(num)) for _ in range(ROUNDS)
        ], aim)  # fmt: skip
        table.ratio("   the same, nothing warmed up", "s", [
            (start_mesh(num, warm=False), raw.fork_with_torch(num)) for _ in range(ROUNDS)
        ], "")  # fmt: skip


def cells(table: Table) -> None:
    """A cell of `pass` beside an actor's no-op, through the magic as it's typed; output; attaching to what
    was missed.
    """
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_line_magic("load_ext", "monarch_nb")
        shell.run_line_magic("mesh", "start bench_cells --gpus 8")
    mesh = shell.user_ns["mesh"]
    actor: Any = mesh.spawn("bench", Bench)
    actor.noop.call().get()
    wait_until_warm()
    floor = raw.RawZmq(8)
    table.ratio(
        "no-op to 8 ranks and back, beside raw pyzmq",
        "us",
        [
            (raw.median_us(lambda: actor.noop.call().get(), 500), raw.median_us(floor.call_all, 500))
            for _ in range(ROUNDS)
        ],
        "2.5x",
    )
    floor.close()
    table.ratio("`%%mesh` of `pass` on 8 ranks, beside the no-op", "us", [
        (
            raw.median_us(lambda: shell.run_cell_magic("mesh", "", "pass"), 300),
            raw.median_us(lambda: actor.noop.call().get(), 500),
        )
        for _ in range(ROUNDS)
    ], "3x")  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        shown = [timed(lambda: shell.run_cell_magic("mesh", "", PRINT)) for _ in range(ROUNDS)]
    table.value("100,000 lines from 8 ranks, shown and journalled", "s", shown, "1 s")
    mesh.stop(grace_s=0.0).get()
    table.value(
        "attach, 10 MB of output missed: connect, replay, show",
        "s",
        [attach_missed() for _ in range(ROUNDS)],
        "1 s",
    )
    rates = [1e6 / timed(fold_million) for _ in range(ROUNDS)]
    table.value("folding a million lines of 8 ranks", "/s", rates, "200,000 /s")


def lines(table: Table) -> None:
    """Lines that actors print, beside bare processes that write each at once, and such that collect 8 KiB."""
    ours, by_line, by_block = bench_lines.measure()
    what = "80,000 lines of 8 actors, beside pipes"
    table.ratio(f"{what}, line by line", "s", list(zip(ours, by_line, strict=True)), "1.5x")
    table.ratio(f"{what}, by 8 KiB", "s", list(zip(ours, by_block, strict=True)), "")


def first_cells(table: Table) -> None:
    """The first cell of a fresh mesh beside the ones that follow."""
    from monarch_nb import mesh as meshes

    for num in (64, 256):
        pairs = []
        for _ in range(ROUNDS if num == 64 else 1):
            mesh = meshes.start(f"bench_first{num}", {"gpus": num}, force=True)
            first = timed(lambda mesh=mesh: mesh.run("pass", quiet=True))
            pairs.append(
                (
                    first,
                    statistics.median(
                        timed(lambda mesh=mesh: mesh.run("pass", quiet=True)) for _ in range(9)
                    ),
                )
            )
            mesh.stop(grace_s=0.0).get(120)
        table.ratio(f"first cell on {num} ranks, beside the next", "s", pairs, "3x")


def faults(table: Table) -> None:
    """A killed rank, a lost host, and what a checkpoint costs the step that it's taken after."""
    import monarch_nb.actor

    monarch_nb.actor.unhandled_fault_hook = lambda failure: None
    procs = this_host().spawn_procs({"gpus": 8})
    actor: Any = procs.spawn("bench", Bench)
    actor.noop.call().get()
    wait_until_warm()
    healed = [kill_and_heal(procs, actor, rank) for rank in (1, 4, 7)]
    table.value("heal of 1 of 8 ranks, torch imported, its actor made", "s", healed, "1 s")
    procs.stop(grace_s=0.0).get(30)
    table.value(
        "heal of a lost host with 4 of 8 ranks, once it's noticed",
        "s",
        [heal_host() for _ in range(ROUNDS)],
        "3 s",
    )
    own, floor = zip(*[checkpoint_stall() for _ in range(ROUNDS)], strict=True)
    table.value("256 MB checkpoint: the next step waits", "ms", list(own), "50 ms", statistics.median(floor))


def kill_and_heal(procs: Any, actor: Any, rank: int) -> float:
    """Return the seconds that a heal takes, once the exception has been raised."""
    pid = list(procs.execute(os.getpid).get().values())[rank]
    pending = procs.slice(gpus=rank).execute(signal.pause)
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(SupervisionError):
        pending.get(30)
    seconds = timed(procs.heal)
    actor.noop.call().get()
    return seconds


def heal_host() -> float:
    """Return the seconds that it takes to put back a host process with four ranks."""
    from monarch_nb.job import ProcessJob

    job = ProcessJob({"hosts": 2})
    procs = job.state().hosts.spawn_procs({"gpus": 4})
    actor: Any = procs.spawn("bench", Bench)
    actor.noop.call().get(60)
    job._processes[1].kill()
    while procs.healthy():
        time.sleep(0.01)
    seconds = timed(procs.heal)
    actor.noop.call().get(60)
    procs.stop(grace_s=0.0).get(30)
    job.state().hosts.shutdown().get(30)
    job.kill()
    return seconds


def checkpoint_stall() -> tuple[float, float]:
    """Return how much longer a step takes after which 256 MB are saved, and one copy of them, in
    milliseconds.
    """
    from bench_checkpoint import EVERY, Big

    procs = this_host().spawn_procs({"gpus": 1})
    big: Any = procs.spawn("big", Big, 256 << 20)
    wait_until_warm()
    stalls, plain = [], []
    for _ in range(5):
        big.checkpoint.call_one().get(120)  # what was being written is on disk
        for _ in range(EVERY - 1):
            plain.append(timed(lambda: big.step.call_one().get(60)))
        big.step.call_one().get(60)
        stalls.append(
            timed(lambda: big.step.call_one().get(60))
        )  # waits for the copy; the writing goes on beside it
        for _ in range(EVERY - 1):
            big.step.call_one().get(60)
    copy_ms = big.copy_ms.call_one().get(60)
    procs.stop(grace_s=0.0).get(30)
    return (statistics.median(stalls) - statistics.median(plain)) * 1e3, copy_ms


PRINT = "for i in range(12_500): print('step', i, 'loss', 0.5 if i % 10 else rank)"


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def fold_million() -> None:
    """Feed a million lines as 8 ranks print them: nine of ten equal, in chunks, ranks a little apart."""
    from monarch_nb._display import Fold

    fold = Fold(range(8))
    for chunk in range(125):
        for rank in range(8):
            text = "".join(
                f"step {i} loss {rank if i % 10 == 0 else 0.5}\n"
                for i in range(chunk * 1000, chunk * 1000 + 1000)
            )
            fold.feed(rank, "stdout", text)


LEAVE = """
import os
from monarch_nb.mesh import start
mesh = start('bench_missed', {'gpus': 8})
run = mesh.submit("for i in range(16_000): print('x' * 60, i, rank if i % 10 == 0 else '')")
print(run.wait_for_number(10), flush=True)
os._exit(0)
"""
COME_BACK = """
import io, sys, time, contextlib
import monarch_nb._magics.missed as missed
from monarch_nb.mesh import attach
start = time.perf_counter()
mesh = attach('bench_missed')
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    missed.show_missed(mesh)
seconds = time.perf_counter() - start
assert len(shown.getvalue()) > 100_000
print(seconds)
mesh.stop(grace_s=0.0).get(30)
"""


def attach_missed() -> float:
    """Return the seconds that it takes to come back to a mesh that has printed 10 MB meanwhile."""
    run_python(LEAVE)
    from monarch_nb.mesh import attach

    watcher = attach("bench_missed", listens=False)
    while any(e.ended is None for e in watcher.history() if e.kind == "cell"):
        time.sleep(0.05)
    watcher._session.close()
    return float(run_python(COME_BACK))


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def main() -> None:
    parts: dict[str, Callable[[Table], None]] = {
        "scripts": scripts,
        "starts": starts,
        "calls": calls,
        "many_ranks": many_ranks,
        "cells": cells,
        "lines": lines,
        "first_cells": first_cells,
        "faults": faults,
    }
    table = Table()
    for name in sys.argv[1:] or parts:
        parts[name](table)
    shutdown_context().get()


if __name__ == "__main__":
    main()
