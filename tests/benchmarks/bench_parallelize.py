"""A training step of `parallelize` beside FSDP2, DDP, HSDP and TP by hand, on the same ranks and groups, and
the first step: CPU seconds of a rank and wall seconds, interleaved.

Run: `python -m tests.benchmarks.bench_parallelize [rounds [strategy ...]]`. A round makes three models, by
hand twice and ours, which then take turns of a step, in an order drawn anew each time: the machine gets
slower and faster within seconds. They are made anew in each round, so that where their memory happens to lie
doesn't decide. The ranks note their times themselves, and have work for several steps: nothing waits for a
result between turns. Ratios are medians of the ratios of turns, with the interval that has 95 of 100 such
medians. A ratio says nothing where by hand differs from by hand as much.
BENCH_WIDTH=512 makes a model whose step takes several times as long: what is added to a step doesn't grow
with it, and is told most exactly of a small one (BENCH_WIDTH=32). BENCH_STEPS: of one turn.
BENCH_APART=1: ranks share one processor (see `processors`).
BENCH_SAMPLES: a file for the measurements of each round (JSON).
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import monarch_nb
from monarch_nb.distributed import Mesh
from tests.benchmarks.medians import median_text, ratio
from tests.benchmarks.notes import Seconds, between, note, read_notes
from tests.benchmarks.processors import move_apart
from tests.benchmarks.trained_by_hand import SIZE, WIDTH, forget, prepare, train
from tests.tensor.models import GPT

STEPS = int(os.environ.get("BENCH_STEPS", "1"))
TURNS = 10
WARM = 2
"""Steps that aren't measured."""
KINDS = ("one", "two", "ours")
ROUNDS = 10


class Models:
    """Three models to be trained in turn: "ours", and by hand "one" and "two"."""

    def __init__(self, mesh: Mesh, strategy: str) -> None:
        self.mesh, self.strategy = mesh, strategy
        self.tokens, self.targets = torch.randint(1000, (8, 64)), torch.randint(1000, (512,))
        self.here = 0.0
        self._ours: Any = None

    def make(self) -> None:
        """Make ours anew, and forget those by hand."""
        self._ours = None
        gc.collect()
        self.mesh.execute(forget)
        model = monarch_nb.parallelize(GPT(**SIZE), self.mesh, self.strategy, sample=self.tokens)
        self._ours = model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def prepare(self) -> None:
        """Tell the ranks what those by hand are trained with, and with which process groups."""
        self.mesh.execute(prepare, self.strategy, self.tokens, self.targets)

    def train(self, which: str, steps: int) -> None:
        """Have the ranks take steps; don't wait for them."""
        began = time.process_time()
        self._note(which)
        if which == "ours":
            model, optimizer = self._ours
            for _ in range(steps):
                optimizer.zero_grad()
                functional.cross_entropy(model(self.tokens), self.targets).backward()
                optimizer.step()
            self.here += time.process_time() - began
        else:
            with self.mesh.activate():
                train(which, steps)

    def _note(self, which: str) -> None:
        with self.mesh.activate():
            note(which)

    def noted(self) -> list[tuple[str, Seconds]]:
        """Wait for the ranks; return what each call of `train` took, in order."""
        self._note("")
        return between(self.mesh.execute(read_notes))


def in_some_order() -> list[str]:
    """Return the names of what is measured, in an order drawn anew."""
    return random.sample(KINDS, len(KINDS))


def measure(mesh: Mesh, strategy: str, rounds: int) -> None:
    """Print a strategy's figures."""
    models = Models(mesh, strategy)
    began = time.perf_counter()
    models.make()
    made = time.perf_counter() - began
    models.train("ours", 1)
    first = models.noted()[0][1]
    models.prepare()
    models.train("one", 1)
    of_hand = models.noted()[0][1]
    print(f"{strategy}: parallelize {made:.2f} s")
    print(f"  first step: {first[1]:.2f} s wall, {first[0]:.2f} s of a rank's CPU")
    print(f"  by hand, made included: {of_hand[1]:.2f} s wall, {of_hand[0]:.2f} s CPU")
    models.here = 0.0
    rows: list[dict[str, Seconds]] = []
    for _ in range(rounds):
        rows += take_turns(models)
        if where := os.environ.get("BENCH_SAMPLES"):
            Path(where).write_text(json.dumps({"rows": rows, "steps": STEPS, "width": WIDTH}))
    print(f"  this process: {models.here / rounds / TURNS / STEPS * 1e3:.1f} ms of CPU a step")
    for n, what in enumerate(("rank CPU", "wall", "CPU of the thread that computes")):
        show(what, {which: [row[which][n] for row in rows] for which in KINDS})


def take_turns(models: Models) -> list[dict[str, Seconds]]:
    """Make the models anew and have them take turns; return what each took at each turn."""
    models.make()
    before = models.here
    for which in in_some_order():
        models.train(which, WARM)
    models.here = before
    for _ in range(TURNS):
        for which in in_some_order():
            models.train(which, STEPS)
    found = models.noted()[len(KINDS) :]
    turns = range(0, len(found), len(KINDS))
    return [dict(found[turn : turn + len(KINDS)]) for turn in turns]


def show(what: str, times: dict[str, list[float]]) -> None:
    """Print medians and ratios of one kind of seconds."""
    one, two, mine = (statistics.median(times[which]) / STEPS * 1e3 for which in KINDS)
    print(f"  {what}: by hand {one:.1f} ms a step, again {two:.1f}, ours {mine:.1f}")
    hand = [(a * b) ** 0.5 for a, b in zip(times["one"], times["two"], strict=True)]
    print(f"    ours / hand {ratio(times['ours'], hand)}, hand / hand {ratio(times['two'], times['one'])}")
    print(
        f"    ours - hand {added(times['ours'], hand)} ms a step, "
        f"hand - hand {added(times['two'], times['one'])}"
    )


def added(ours: list[float], theirs: list[float]) -> str:
    """Return the median of differences, in milliseconds a step."""
    return median_text([(a - b) / STEPS * 1e3 for a, b in zip(ours, theirs, strict=True)], 2)


def run(strategy: str, rounds: int) -> None:
    """Measure a strategy on ranks of its own: two, and four for "hsdp", which shards over two and copies."""
    shape, names = ((2, 2), ("replicas", "shards")) if strategy == "hsdp" else ((2,), ("data_parallel",))
    with Mesh(shape, names) as ranks:
        move_apart(ranks)
        measure(ranks, strategy, rounds)


if __name__ == "__main__":
    for each in sys.argv[2:] or ("fsdp", "ddp", "hsdp", "tp"):
        run(each, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
