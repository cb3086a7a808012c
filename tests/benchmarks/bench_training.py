"""DDP, and TorchTitan's trainer where it's installed, by `mesh.run_script` beside torchrun on the same cores,
with torchrun beside itself (A/A): `python tests/benchmarks/bench_training.py [ROUNDS]`.

The aim is a ratio of 1.03 at most. Each way runs in turn, and which comes first changes from round to round.
Each round has a mesh of its own, on whose ranks the script runs twice: where a process' memory lies makes
some steps quicker than others, and ranks of one mesh have that in common, for they are forks of one process.
The scripts take the clocks of their own steps, after some to warm up; starts aren't counted, for ours are
warm. Said are the medians over the rounds, as ratios to torchrun's: of a run's quickest step, of its median
step, and of the CPU time that all ranks took for a step, which other programs on the machine disturb least.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from monarch_nb import mesh as meshes
from monarch_nb.mesh import Mesh

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from bench_actor import wait_until_warm
from titan_files import write_titan_files

NUM_RANKS, NUM_WARM = 2, 10
TRIES, LIMIT_S = 3, 150
OURS, OURS_AGAIN, THEIRS, AGAIN = "run_script", "run_script again", "torchrun", "torchrun again"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
DDP = """
import json, os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batch = torch.randn(64, 512)
steps = []
for number in range(310):
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    steps.append([number, loss.item(), time.perf_counter(), time.process_time()])
with open(os.environ["STEPS"] + os.environ["RANK"], "w") as file:
    json.dump(steps, file)
dist.destroy_process_group()
"""
TITAN = ("exact.py", "--module", "small_llama", "--config", "small", "--training.steps", "40")


class Steps(NamedTuple):
    """What one run's steps took, in milliseconds: the quickest and the median one, and CPU time of all ranks
    for one.
    """

    least_ms: float
    median_ms: float
    cpu_ms: float


def read_steps(folder: Path) -> Steps:
    """Return what the last run's steps took, and take its files away."""
    wall: list[float] = []
    cpu_s = 0.0
    for rank in range(NUM_RANKS):
        file = folder / f"steps{rank}"
        clocks = [step[-2:] for step in json.loads(file.read_text())][NUM_WARM:]
        file.unlink()
        wall += [later[0] - earlier[0] for earlier, later in itertools.pairwise(clocks)]
        cpu_s += (clocks[-1][1] - clocks[0][1]) / (len(clocks) - 1)
    return Steps(min(wall) * 1e3, statistics.median(wall) * 1e3, cpu_s * 1e3)


def torchrun(folder: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
    """Run a script as torchrun does; again if it hasn't come to its last step. Gloo's threads may abort a
    script that has ended ("terminate called without an active exception"): its steps are there, and count.
    """
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    said = ""
    for _ in range(TRIES):
        try:
            ran = subprocess.run(
                [*launcher, str(NUM_RANKS), *words], env={**os.environ, **environment},
                capture_output=True, text=True, check=False, timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            said = f"no end within {LIMIT_S} s"
            continue
        if all((folder / f"steps{rank}").exists() for rank in range(NUM_RANKS)):
            return
        said = ran.stderr[-8000:]
    sys.exit(f"torchrun {' '.join(words)} has failed {TRIES} times, at last:\n{said}")


def compare(folder: Path, what: str, words: tuple[str, ...], rounds: int) -> None:
    """Run a script each way, in turn, and say how long its steps took."""
    environment = {**ONE_THREAD, "STEPS": "steps", "HF_HOME": str(folder / "cache")}
    found: dict[str, list[Steps]] = {way: [] for way in (THEIRS, OURS, OURS_AGAIN, AGAIN)}

    def ours() -> None:
        with started() as mesh:
            for way in (OURS, OURS_AGAIN):
                mesh.run_script(words[0], *words[1:], env=environment, quiet=True)
                found[way].append(read_steps(folder))

    def theirs(way: str) -> None:
        torchrun(folder, words, environment)
        found[way].append(read_steps(folder))

    ways: list[Callable[[], None]] = [partial(theirs, THEIRS), ours, partial(theirs, AGAIN)]
    orders = itertools.cycle([*itertools.permutations(ways)])
    for order in itertools.islice(orders, 0, rounds * 2, 2):
        for run in order:
            run()
    floor = _medians(found[THEIRS])
    for way, runs in found.items():
        mine = _medians(runs)
        output = (
            f"{name} {ms:.2f} ms ({ms / base:.3f})"
            for name, ms, base in zip(("quickest", "median", "CPU"), mine, floor, strict=True)
        )
        print(f"{what:<12} {way:<16} a step: {', '.join(output)}", flush=True)


def _medians(runs: list[Steps]) -> Steps:
    return Steps(*(statistics.median(column) for column in zip(*runs, strict=True)))


@contextlib.contextmanager
def started() -> Iterator[Mesh]:
    """Start a mesh, and end it."""
    mesh = meshes.start("bench-training", {"procs": NUM_RANKS}, with_program=True, env=ONE_THREAD)
    try:
        wait_until_warm()
        yield mesh
    finally:
        mesh.stop().get(30)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        (folder / "ddp.py").write_text(DDP)
        compare(folder, "DDP", ("ddp.py",), rounds)
        if importlib.util.find_spec("torchtitan") is None:
            print("TorchTitan left out: it isn't installed; pip install -e '.[titan]'")
            return
        write_titan_files(folder)
        compare(folder, "TorchTitan", TITAN, max(2, rounds // 2))


if __name__ == "__main__":
    main()
