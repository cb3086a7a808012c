"""Random operations on tensors of a mesh, and the same ones on plain tensors of this process.

Numbers are integers that wrap around: sums are the same in any order, so values must be equal, not close.
"""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from processes import PATIENCE_S, wait_for_exit

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import (
    DeviceMeshError,
    MeshUsageError,
    RemoteException,
    SupervisionError,
    WrongTensor,
)  # fmt: skip

ROWS, COLUMNS = "rows", "columns"
SPECS: list[list[Any]] = [[], [ROWS], [None, COLUMNS], [ROWS, COLUMNS], [COLUMNS, ROWS], [(ROWS, COLUMNS)]]
MOST = 24
"""Number of values that are kept at a time."""
MODULUS = 1009
REFUSED = (MeshUsageError, WrongTensor)
"""What can't be done on tensors of a mesh, such as to write into a view that had to be a copy."""


@dataclass(eq=False)
class Value:
    """A tensor of the mesh and what it must be: one tensor, or one for each rank."""

    made: Any
    plain: Any

    @property
    def is_global(self) -> bool:
        return isinstance(self.plain, torch.Tensor)

    @property
    def found(self) -> Any:
        if self.is_global:
            return self.made.full()
        return [monarch_nb.inspect(self.made, rank=rank) for rank in range(len(self.plain))]

    def is_right(self) -> bool:
        found = self.found
        if self.is_global:
            return bool(found.dtype == self.plain.dtype and torch.equal(found, self.plain))
        return all(map(torch.equal, found, self.plain))

    @property
    def memory(self) -> set[int]:
        plain = [self.plain] if self.is_global else self.plain
        return {each.untyped_storage().data_ptr() for each in plain}

    def outlives(self, rank: int) -> bool:
        """Say whether each part of it is on another rank, too; ranks are numbered by rows, then columns."""
        if not self.is_global:
            return False
        row, column = self.made.placements
        if row.is_partial() or column.is_partial():
            return False
        return bool(row.is_replicate() or column.is_replicate())


class Walk:
    """A random walk.

    Attributes:
        counts: how often each operation was done; "refused", "lost", "survived", "kills".
    """

    def __init__(self, mesh: Mesh, seed: int) -> None:
        self.mesh = mesh
        self.random = random.Random(seed)
        self.values: list[Value] = []
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        """The last operations, to be shown when a value is wrong."""
        self._steps: dict[str, tuple[int, Callable[[], None]]] = {
            name.removeprefix("do_"): (getattr(self, name).__func__.__defaults__[0], getattr(self, name))
            for name in dir(self)
            if name.startswith("do_")
        }

    # --- steps

    def run(self, num: int, kill_every: int) -> None:
        """Do so many operations, with a kill among so many."""
        names = list(self._steps)
        weights = [self._steps[name][0] for name in names]
        next_kill = self.random.randint(1, 2 * kill_every)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # that something is gathered is said once
            for n in range(num):
                if n == next_kill:
                    self.lose_a_rank()
                    next_kill = n + self.random.randint(1, 2 * kill_every)
                self.step(self.random.choices(names, weights)[0])
            self.check_all()

    def step(self, name: str) -> None:
        while len(self.values) > MOST:
            self.values.pop(self.random.randrange(len(self.values)))
        if len(self.values) < 3:
            name = "put"
        self.trace = [*self.trace[-60:], name]
        self.counts[name] += 1
        try:
            self._steps[name][1]()
        except REFUSED as refusal:
            if isinstance(refusal, DeviceMeshError):
                raise
            self.counts["refused"] += 1
        except SupervisionError:
            raise
        except Exception as error:
            error.add_note("the last steps:\n  " + "\n  ".join(self.trace))
            raise

    def check(self, value: Value) -> None:
        if not value.is_right():
            raise AssertionError(
                f"{value.made.mesh_meta!r}: {value.found} for {value.plain}; the last steps:\n  "
                + "\n  ".join(self.trace)
            )

    def check_all(self) -> None:
        for value in self.values:
            self.check(value)

    # --- losses

    def lose_a_rank(self) -> None:
        """Kill a rank, at once or in the middle of further operations; heal; look at what is left."""
        rank = self.random.randrange(4)
        pid = list(self.mesh.procs.execute(os.getpid).get(PATIENCE_S).values())[rank]
        is_quiet = self.random.random() < 0.5
        if is_quiet:
            self.check_all()
        self.trace.append(f"rank {rank} is killed, {'when all is done' if is_quiet else 'at once'}")
        touched = self._killed_quietly(pid) if is_quiet else self._killed_at_work(pid)
        assert wait_for_exit(pid)
        monarch_nb.heal_mesh(self.mesh)
        self.counts["kills"] += 1
        self._after(rank, is_quiet, touched)

    def _killed_quietly(self, pid: int) -> set[int]:
        os.kill(pid, signal.SIGKILL)
        try:
            for _ in range(1000):
                monarch_nb.distribute(torch.ones(4), self.mesh, [ROWS]).sum().item()
        except SupervisionError as error:
            self._check_told(error)
            return set()
        raise AssertionError("nobody said that a rank is dead")

    def _killed_at_work(self, pid: int) -> set[int]:
        """Go on until the program hears of it; return memory whose last change is in doubt."""
        self._several(self.random.randrange(20))
        os.kill(pid, signal.SIGKILL)
        try:
            for _ in range(2000):
                self._several(1)
                if self.random.random() < 0.1:
                    self.check(self.random.choice(self.values))
        except SupervisionError as error:
            self._check_told(error)
            return self._at_work
        raise AssertionError("nobody said that a rank is dead")

    def _several(self, num: int) -> None:
        for _ in range(num):
            self._at_work: set[int] = set()
            self.step(self.random.choice([name for name in self._steps if name != "fail"]))

    def _check_told(self, error: SupervisionError) -> None:
        assert "lost rank" in str(error) or "is dead" in str(error), error

    def _after(self, rank: int, is_quiet: bool, in_doubt: set[int]) -> None:
        """Each value is right, or is said to be lost."""
        left = []
        for value in self.values:
            if value.memory & in_doubt:  # an operation that would have changed it has raised
                continue
            loss = self._loss_of(value)
            if loss:
                assert f"lost with rank {rank} of its mesh" in loss, loss
                assert not (is_quiet and value.outlives(rank)), f"it should have lived on: {loss}"
            else:
                left.append(value)
            self.counts["lost" if loss else "survived"] += 1
        self.values = left

    def _loss_of(self, value: Value) -> str:
        try:
            self.check(value)
        except DeviceMeshError as error:
            return f"{value.made!r}: {error}"
        return ""

    # --- what is done: its default argument says how often

    def _one(self, fits: Callable[[Value], bool] = lambda v: v.is_global) -> Value:
        found = [value for value in self.values if fits(value)]
        if not found:
            raise WrongTensor("there is none")
        value = self.random.choice(found)
        self.trace[-1] += f" of {value.made.mesh_meta!r}"
        return value

    def _plain(self) -> torch.Tensor:
        size = [self.random.choice([1, 2, 3, 4, 6]) for _ in range(self.random.choice([1, 2, 2]))]
        return torch.tensor([self.random.randrange(-50, 50) for _ in range(torch.Size(size).numel())]).view(
            size
        )

    def _spec(self, dim: int) -> list[Any]:
        return self.random.choice([spec for spec in SPECS if len(spec) <= dim])

    def _keep(self, value: Value, do: Callable[[Any], Any]) -> None:
        """Apply a function to a value, and keep the result."""
        made = do(value.made)
        self._add(made, do(value.plain) if value.is_global else [do(each) for each in value.plain])

    def _add(self, made: Any, plain: Any) -> None:
        if made.mesh_meta.is_copy:  # a view that isn't one here
            plain = plain.clone()
        self.values.append(Value(made, plain))

    def do_put(self, often: int = 6) -> None:
        plain = self._plain()
        made = monarch_nb.distribute(plain, self.mesh, self._spec(plain.dim()))
        self.values.append(Value(made, plain.clone()))

    def do_own(self, often: int = 2) -> None:
        plain = self._plain()
        with self.mesh.activate():
            made = torch.full(tuple(plain.shape), int(plain.flatten()[0]), dtype=torch.int64)
            made = made + self.mesh.rank_tensor(self.random.choice([ROWS, COLUMNS])).to(torch.int64)
        self.values.append(Value(made, [monarch_nb.inspect(made, rank=r) for r in range(4)]))

    def do_pointwise(self, often: int = 14) -> None:
        by = self.random.randrange(1, 7)
        self._keep(self._one(lambda v: True), self.random.choice([
            lambda x: -x, torch.abs, lambda x: x * by, lambda x: x + by, lambda x: x % MODULUS,
            lambda x: x.clamp(-by, by), lambda x: (x > by) * x, lambda x: torch.where(x > 0, x, by),
        ]))  # fmt: skip

    def do_pair(self, often: int = 14) -> None:
        one = self._one(lambda v: True)
        other = self._one(lambda v: v.is_global == one.is_global and _meet(v.made, one.made))
        do = self.random.choice([torch.add, torch.sub, torch.maximum, lambda x, y: (x * y) % MODULUS])
        made = do(one.made, other.made)
        self._add(
            made, do(one.plain, other.plain) if one.is_global else list(map(do, one.plain, other.plain))
        )

    def do_plain_partner(self, often: int = 4) -> None:
        value = self._one()
        plain = torch.full(value.plain.shape, self.random.randrange(-9, 9))
        self._keep(value, lambda x: x + plain)

    def do_matmul(self, often: int = 6) -> None:
        one = self._one(lambda v: v.is_global and v.made.dim() == 2)
        other = self._one(lambda v: v.is_global and v.made.dim() == 2 and len(v.made) == one.made.shape[1])
        self._add((one.made @ other.made) % MODULUS, (one.plain @ other.plain) % MODULUS)

    def do_view(self, often: int = 10) -> None:
        value = self._one()
        dim = self.random.randrange(value.made.dim()) if value.made.dim() else None
        if dim is None:
            self._keep(value, lambda x: x.expand(2).clone())
            return
        size = value.made.shape[dim]
        at = self.random.randrange(size)
        self._keep(value, self.random.choice([
            lambda x: x.select(dim, at), lambda x: x.narrow(dim, at, size - at),
            lambda x: x.transpose(0, dim), lambda x: x.unsqueeze(dim), lambda x: x.reshape(-1),
            lambda x: x.flip(dim), lambda x: x.unflatten(dim, (size, 1)), lambda x: x[::2],
        ]))  # fmt: skip

    def do_in_place(self, often: int = 12) -> None:
        value = self._one(lambda v: True)
        by = self.random.randrange(1, 7)
        self._change(value, self.random.choice([
            lambda x: x.add_(by), lambda x: x.neg_(), lambda x: x.remainder_(MODULUS), lambda x: x.zero_(),
            lambda x: x.mul_(by), lambda x: x.clamp_(-by, by),
        ]))  # fmt: skip

    def do_in_place_by(self, often: int = 8) -> None:
        value = self._one()
        other = self._one(lambda v: v.is_global and v.made.shape == value.made.shape)
        name = self.random.choice(["add_", "copy_", "sub_"])
        before = value.plain.clone()
        try:
            getattr(value.plain, name)(other.plain)
        except RuntimeError as error:  # views of the same memory that torch doesn't write into each other
            if "single memory location" not in str(error):
                raise
            raise WrongTensor(str(error)) from None
        self._at_work = value.memory
        try:
            getattr(value.made, name)(other.made)
        except REFUSED:
            value.plain.copy_(before)
            raise

    def do_part_in_place(self, often: int = 8) -> None:
        value = self._one(lambda v: v.is_global and v.made.dim() > 0)
        at, by = self.random.randrange(len(value.plain)), self.random.randrange(1, 7)

        def fill(x: Any) -> None:
            x[at] = by

        self._change(value, self.random.choice([lambda x: x[at:].add_(by), fill, lambda x: x[at].mul_(by)]))

    def _change(self, value: Value, do: Callable[[Any], Any]) -> None:
        self._at_work = value.memory
        do(value.made)
        for each in [value.plain] if value.is_global else value.plain:
            do(each)

    def do_reduction(self, often: int = 8) -> None:
        value = self._one(lambda v: v.is_global and v.made.dim() > 0)
        dim = self.random.randrange(value.made.dim())
        self._keep(value, self.random.choice([
            lambda x: x.sum(), lambda x: x.sum(dim), lambda x: x.amax(dim), lambda x: x.cumsum(dim) % MODULUS,
            lambda x: x.argmax(dim), lambda x: x.sum(dim, keepdim=True), lambda x: x.amin(),
        ]))  # fmt: skip

    def do_redistribute(self, often: int = 8) -> None:
        value = self._one()
        made = monarch_nb.redistribute(value.made, self._spec(value.made.dim()))
        is_same = made.placements == value.made.placements
        self.values.append(Value(made, value.plain if is_same else value.plain.clone()))

    def do_index(self, often: int = 6) -> None:
        value = self._one(lambda v: v.is_global and v.made.dim() > 0)
        rows = torch.tensor([self.random.randrange(len(value.plain)) for _ in range(3)])
        self._keep(value, self.random.choice([
            lambda x: x[rows], lambda x: x.index_select(0, rows),
            lambda x: x.roll(1, 0),
            lambda x: torch.cat([x, x * 2]) % MODULUS, lambda x: torch.stack([x, x]),
            lambda x: x.sort(dim=0, stable=True).values,
        ]))  # fmt: skip

    def do_mask(self, often: int = 1) -> None:
        value = self._one(lambda v: v.is_global and v.made.dim() > 0)
        if bool((value.plain > 0).any()):
            self._keep(value, lambda x: x[x > 0])

    def do_reduce_own(self, often: int = 2) -> None:
        value = self._one(lambda v: not v.is_global)
        axis = self.random.choice([ROWS, COLUMNS])
        made = value.made.reduce(axis)
        pairs = [(0, 2), (1, 3)] if axis == ROWS else [(0, 1), (2, 3)]
        plain: list[Any] = [None] * 4
        for a, b in pairs:
            plain[a] = value.plain[a] + value.plain[b]
            plain[b] = plain[a].clone()
        self.values.append(Value(made, plain))

    def do_own_of_global(self, often: int = 2) -> None:
        value = self._one(lambda v: v.is_global and all(p.is_replicate() for p in v.made.placements))
        self.values.append(Value((value.made + 0).detach(), value.plain + 0))
        made = monarch_nb.per_rank(value.made + 1)
        self.values.append(Value(made, [value.plain + 1 for _ in range(4)]))

    def do_drop(self, often: int = 6) -> None:
        value = self.values.pop(self.random.randrange(len(self.values)))
        if self.random.random() < 0.3:
            value.made.drop()

    def do_fetch(self, often: int = 5) -> None:
        self.check(self._one(lambda v: True))

    def do_fail(self, often: int = 1) -> None:
        """A command that fails on all ranks; what depends on it fails, too, and nothing else."""
        value = self._one(lambda v: v.is_global and v.made.dim() > 0)
        bad = value.made.index_select(0, torch.tensor([len(value.plain) + 7]))
        with pytest.raises(RemoteException, match="index_select"):
            (bad + 1).full()


def _meet(one: Any, other: Any) -> bool:
    try:
        torch.broadcast_shapes(one.shape, other.shape)
    except RuntimeError:
        return False
    return True
