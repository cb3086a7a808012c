"""DDP by `mesh.run_script` beside torchrun on the same cores, with torchrun beside itself (A/A):
`python tests/benchmarks/bench_training.py [ROUNDS]`.

The aim is a ratio of 1.03 at most. The script measures its own steps, after some to warm up: the least of a
run is taken, and CPU seconds of the steps. Starts aren't counted; ours are warm.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from monarch_nb import mesh as meshes

NUM_RANKS = 2
SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batch = torch.randn(64, 512)
def step():
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()
for _ in range(10):
    step()
times, cpu = [], time.process_time()
for _ in range(100):
    began = time.perf_counter()
    step()
    times.append(time.perf_counter() - began)
cpu = time.process_time() - cpu
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump([min(times), sorted(times)[50], cpu / 100], file)
dist.destroy_process_group()
"""


def torchrun(folder: Path) -> None:
    """Run the script as torchrun does."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NUM_RANKS)]
    subprocess.run(
        [sys.executable, *words, "train.py", "out.json"],
        cwd=folder, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        os.chdir(folder)
        mesh = meshes.start("bench-training", {"procs": NUM_RANKS}, with_program=True)
        ways: dict[str, Callable[[], object]] = {
            "torchrun": lambda: torchrun(folder),
            "mesh.run_script": lambda: mesh.run_script(
                "train.py", "out.json", env={"OMP_NUM_THREADS": "1"}, quiet=True
            ),
            "torchrun again": lambda: torchrun(folder),
        }
        found: dict[str, list[list[float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, run in ways.items():
                run()
                found[way].append(json.loads((folder / "out.json").read_text()))
        mesh.stop().get(30)
    floor = [min(column) for column in zip(*found["torchrun"], strict=True)]
    for way, rows in found.items():
        least, middle, cpu = zip(*rows, strict=True)
        print(
            f"{way:<16} step: least {min(least) * 1e3:.2f} ms ({min(least) / floor[0]:.3f}), median "
            f"{statistics.median(middle) * 1e3:.2f} ms, CPU {min(cpu) * 1e3:.2f} ms "
            f"({min(cpu) / floor[2]:.3f})"
        )


if __name__ == "__main__":
    main()
