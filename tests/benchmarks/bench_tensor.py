"""Tensors of a mesh, beside torch's own: `python -m tests.benchmarks.bench_tensor [part ...]`, of the parts
operations, programs, gpt and chain. All rows in one run, in turns, on one machine.

Prints, as CPU time of this process, the least of some rounds: an operation that was done before, on tensors
of a mesh and on plain ones of 4 x 4 numbers, which is what Python and torch's dispatch cost, and on a
subclass of tensors that does nothing but return the last result's like: no subclass that torch calls for each
operation can do less. Then programs, tensors of 4 numbers a row: training steps of a small network and of a
GPT; words and commands that a step sends.

Then a training step of a GPT, as streamed commands and as a replay of `monarch_nb.compile`, beside the same
step written by hand for DTensors, on the same ranks and process groups: turns of a step, in random order, by
hand twice; models are made anew in each round of ten turns. Ranks note their times themselves, and nothing
waits between turns. In the large one operations take longest, in the small one what is around them. Ratios
are by turn, of CPU time of a rank, of that of its thread that computes, and of wall time, each median with
the interval of 95 of 100 such medians. If by hand against by hand isn't 1, the rest can't be told either.
BENCH_ROUNDS: how many rounds.
BENCH_SAMPLES: a file for the measurements of each round (JSON), with the width in its name.
BENCH_APART=1: ranks share one processor (see `processors`). BENCH_RANKS=1 with it: one rank and this program
have a processor each, so that what's said is what operations take, without what ranks wait for each other.

At last operations a second of a chain of them on 8 ranks, beside Monarch's tensor engine, if BENCH_MONARCH
is the path of a Python that has `torchmonarch`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils import _pytree as pytree

import monarch_nb
from monarch_nb.distributed import Mesh
from tests.benchmarks.gpt_by_hand import GPT, by_hand, loss_of, train_by_hand
from tests.benchmarks.medians import ratio
from tests.benchmarks.notes import Seconds, between, note, read_notes
from tests.benchmarks.processors import move_apart

NUM_RANKS = int(os.environ.get("BENCH_RANKS", "2"))
NUM_ROUNDS = 15
NUM_OPERATIONS = 300
NUM_STEPS = 10
GPT_ROUNDS = int(os.environ.get("BENCH_ROUNDS", "30"))
GPT_TURNS = 10
OURS = ("streamed", "replayed")
BY_HAND = ("by hand", "by hand again")
WAYS = (*OURS, *BY_HAND)
CHAIN_RANKS = 8
CHAIN_ROUNDS = 3


def cpu_s(do: Callable[[], object]) -> float:
    """Return the CPU time of this thread that something takes."""
    began = time.thread_time()
    do()
    return time.thread_time() - began


def row(
    what: str, ours: Sequence[float], floor: Sequence[float], num: int, idle: Sequence[float] = ()
) -> None:
    """Print the least of both per operation, and their ratio; `idle`: of the subclass that does nothing."""
    mine, theirs = min(ours) / num * 1e6, min(floor) / num * 1e6
    least = min(idle) / num * 1e6 if idle else 0.0
    bound = f"   a subclass that does nothing {least:6.1f} us   {least / theirs:6.1f} x" if idle else ""
    print(f"{what:<46} {mine:9.1f} us   plain torch {theirs:9.1f} us   {mine / theirs:6.1f} x{bound}")


class Idle(torch.Tensor):
    """A tensor without data, whose operations only make another one."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    sizes: ClassVar[dict[Any, torch.Size]] = {}
    """Sizes of results, by operation and sizes of the first argument."""

    @staticmethod
    def __new__(cls, size: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, size)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if type(args[0]) is cls else args[0][0]
        key = id(func), first.shape
        size = cls.sizes.get(key)
        if size is None:
            plain = pytree.tree_map(lambda x: torch.empty(x.shape) if type(x) is cls else x, (args, kwargs))
            size = cls.sizes[key] = func(*plain[0], **(plain[1] or {})).shape
        return first if func._schema.is_mutable else cls(size)


def repeated(step: Callable[[Any], Any], start: Any) -> Callable[[], None]:
    """Return what does an operation many times."""

    def do() -> None:
        for _ in range(NUM_OPERATIONS):
            step(start)

    return do


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "x + x": lambda x: x + x,
    "x.mul_(0.5)": lambda x: x.mul_(0.5),
    "x @ x": lambda x: x @ x,
    "x * 0.5": lambda x: x * 0.5,
    "x.add(x)": lambda x: x.add(x),
    "torch.relu(x)": torch.relu,
    "x.sum(0, keepdim=True)": lambda x: x.sum(0, keepdim=True),
    "softmax(x, 1)": lambda x: functional.softmax(x, 1),
    "torch.exp(x)": torch.exp,
    "torch.neg(x)": torch.neg,
    "x.view(2, 8)": lambda x: x.view(2, 8),
    "x.T": lambda x: x.T,
    "x.unsqueeze(0)": lambda x: x.unsqueeze(0),
    "x[:, 0:2]": lambda x: x[:, 0:2],
    "torch.cat((x, x))": lambda x: torch.cat((x, x)),
}


def operations(mesh: Mesh) -> None:
    """Print rows of single operations."""
    for name, step in OPERATIONS.items():
        with torch.no_grad():
            plain = torch.eye(4)
            laid_out = monarch_nb.distribute(plain, mesh)
            ways = [repeated(step, x) for x in (laid_out, plain, Idle(plain.shape))]
            rounds = []
            for _ in range(NUM_ROUNDS):
                rounds.append([cpu_s(way) for way in ways])
                laid_out.engine.synchronize()
        ours, floor, idle = zip(*rounds[1:], strict=True)
        row(name, ours, floor, NUM_OPERATIONS, idle)


class Program:
    """A training loop of a module, here or on a mesh."""

    def __init__(self, module: nn.Module, batch: torch.Tensor, loss: Callable[[Any], Any]) -> None:
        self.module, self._batch, self._loss = module, batch, loss
        self._optimizer = optim.AdamW(module.parameters(), lr=1e-4)

    def run(self) -> None:
        """Take some steps."""
        for _ in range(NUM_STEPS):
            self._optimizer.zero_grad()
            self._loss(self.module(self._batch)).backward()
            self._optimizer.step()


def programs(mesh: Mesh) -> None:
    """Print rows of training steps whose tensors are so small that only Python and torch's dispatch count."""
    mlp = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    rows, tokens = torch.randn(4, 4), torch.randint(GPT.VOCABULARY, (4, 4))

    def of_rows(y: Any) -> Any:
        return nn.functional.mse_loss(y, rows)

    def of_tokens(y: Any) -> Any:
        return nn.functional.cross_entropy(y, tokens.flatten())

    for what, plain, batch, loss in (("an MLP", mlp, rows, of_rows), ("a GPT", GPT(4), tokens, of_tokens)):
        program(f"a step of {what} with AdamW", mesh, plain, batch, loss)


def program(what: str, mesh: Mesh, plain: nn.Module, batch: torch.Tensor, loss: Callable[[Any], Any]) -> None:
    """Print the row of a training step."""
    mine = Program(monarch_nb.module_to_mesh(plain, mesh), batch, loss)
    floor = Program(plain, batch, loss)
    engine: Any = next(mine.module.parameters()).engine  # type: ignore[attr-defined]
    mine.run()
    engine.synchronize()
    before, bytes_before = engine.stream.count, engine.stream.num_bytes
    pairs = []
    for _ in range(NUM_ROUNDS):
        pairs.append((cpu_s(mine.run), cpu_s(floor.run)))
        engine.synchronize()
    num = NUM_ROUNDS * NUM_STEPS
    row(what, [p[0] for p in pairs], [p[1] for p in pairs], NUM_STEPS)
    print(
        f"  {(engine.stream.count - before) / num:.0f} commands, "
        f"{(engine.stream.num_bytes - bytes_before) / num:.0f} bytes a step"
    )


class GPTs:
    """Ways to train a GPT, a step at a time: streamed, replayed, and twice by hand."""

    WARM = 8
    """Steps of each that aren't measured: a recorded function is replayed from the fourth or fifth on."""

    def __init__(self, mesh: Mesh, width: int, length: int) -> None:
        self.mesh, self.width = mesh, width
        batch = torch.randint(GPT.VOCABULARY, (8, length))
        self._batch = tuple(
            monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in (batch, batch.roll(-1, 1).flatten())
        )
        self.here: dict[str, list[float]] = {name: [] for name in WAYS}
        self._ours: dict[str, Callable[[Any, Any], Any]] = {}
        self._losses: dict[str, Any] = {}

    def make(self) -> None:
        """Make all models anew, alike."""
        plain = GPT(self.width)
        self._ours = {
            "streamed": self._stepping(plain),
            "replayed": monarch_nb.compile(self._stepping(plain)),
        }
        for which in BY_HAND:
            self.mesh.execute(by_hand, which, plain, *self._batch)

    def _stepping(self, plain: nn.Module) -> Callable[[Any, Any], Any]:
        model = monarch_nb.module_to_mesh(plain, self.mesh)
        optimizer = optim.SGD(model.parameters(), lr=1e-2)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def train(self, which: str) -> None:
        """Have the ranks take a step, and note when it begins; don't wait for them."""
        began = time.thread_time()
        with self.mesh.activate():
            note(which)
            if which in BY_HAND:
                train_by_hand(which)
        if which in self._ours:
            self._losses[which] = self._ours[which](*self._batch)
        self.here[which].append(time.thread_time() - began)

    def noted(self) -> list[tuple[str, Seconds]]:
        """Wait for the ranks; return what each step took, in order."""
        with self.mesh.activate():
            note("")
        found = self.mesh.execute(read_notes)  # a list for each rank; one for all if they say the same
        return between([found] if NUM_RANKS == 1 else found)

    def turns(self) -> list[dict[str, Seconds]]:
        """Make models anew, and have them take turns; return what each took at each turn."""
        self.make()
        for which in random.sample(WAYS, len(WAYS)):
            for _ in range(self.WARM):
                self.train(which)
        for _ in range(GPT_TURNS):
            for which in random.sample(WAYS, len(WAYS)):
                self.train(which)
        found = self.noted()[self.WARM * len(WAYS) :]
        return [dict(found[n : n + len(WAYS)]) for n in range(0, len(found), len(WAYS))]

    def losses(self) -> dict[str, float]:
        """Return the last loss of each."""
        ours = {which: each.item() for which, each in self._losses.items()}
        return {**ours, **{which: self.mesh.execute(loss_of, which) for which in BY_HAND}}

    def sent(self, which: str) -> int:
        """Return how many bytes are sent for a step."""
        stream = self.mesh.tensor_grid().engine.stream
        stream.flush()
        before = stream.num_bytes
        if which in BY_HAND:
            with self.mesh.activate():
                train_by_hand(which)
        else:
            self._losses[which] = self._ours[which](*self._batch)
        stream.flush()
        return int(stream.num_bytes - before)


def gpt(mesh: Mesh, width: int, length: int) -> None:
    """Print the rows of a GPT's step."""
    models = GPTs(mesh, width, length)
    rows: list[dict[str, Seconds]] = []
    differs = 0.0
    for _ in range(GPT_ROUNDS):
        rows += models.turns()
        losses = models.losses().values()
        differs = max(differs, max(losses) - min(losses))
        if where := os.environ.get("BENCH_SAMPLES"):
            Path(where).with_suffix(f".{width}.json").write_text(json.dumps({"rows": rows}))
    one, two = ([row[which] for row in rows] for which in BY_HAND)
    both = [tuple((x * y) ** 0.5 for x, y in zip(a, b, strict=True)) for a, b in zip(one, two, strict=True)]
    for name in WAYS:
        taken, floor = [row[name] for row in rows], both if name in OURS else one
        cpu, wall, thread = (
            f"{statistics.median(each[n] for each in taken) * 1e3:6.1f} ms, "
            f"{ratio([each[n] for each in taken], [each[n] for each in floor])} x by hand"
            for n in range(3)
        )
        here = statistics.median(models.here[name]) * 1e3
        print(f"GPT of width {width}, {name}, {len(rows)} turns: rank CPU {cpu}; of its "
              f"thread that computes {thread}; wall {wall}; "
              f"here {here:.2f} ms CPU, {models.sent(name)} bytes")  # fmt: skip
    print(f"  losses of all four differ by at most {differs:.1e}")


def chain(_mesh: Mesh) -> None:
    """Print operations a second beside Monarch's tensor engine."""
    pythons = {"monarch_nb": (sys.executable, 20_000)}
    if monarch := os.environ.get("BENCH_MONARCH"):
        pythons["monarch"] = (monarch, 1_000)
    found: dict[str, list[float]] = {package: [] for package in pythons}
    for _ in range(CHAIN_ROUNDS):
        for package, (python, num) in pythons.items():
            script = str(Path(__file__).with_name("chain.py"))
            words = [python, script, package, str(CHAIN_RANKS), str(num)]
            printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            found[package] += [float(line) for line in printed.split()[-3:]]  # Monarch prints more before
    for package, each in found.items():
        print(f"{package}: {statistics.median(each):8.0f} operations a second on {CHAIN_RANKS} ranks")
    if "monarch" in found:
        print(f"  {ratio(found['monarch_nb'], found['monarch'])} x Monarch's")
    else:
        print("  beside Monarch: BENCH_MONARCH=/path/to/python, of an environment with torchmonarch")


def gpts(mesh: Mesh) -> None:
    """Print the rows of two GPTs."""
    gpt(mesh, 128, 64)
    gpt(mesh, 32, 16)


PARTS: dict[str, Callable[[Mesh], None]] = {
    "operations": operations,
    "programs": programs,
    "gpt": gpts,
    "chain": chain,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    with Mesh((NUM_RANKS,), ("data_parallel",)) as benchmarked:
        move_apart(benchmarked)
        for part in sys.argv[1:] or PARTS:
            PARTS[part](benchmarked)
