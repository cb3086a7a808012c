"""Functions that are recorded and replayed do what they'd do without that, in one message."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import monarch_nb
from monarch_nb._rank.tensor.executor import KEPT_MESSAGES
from monarch_nb._rank.tensor.protocol import Batch
from monarch_nb._tensor import controller
from monarch_nb._tensor.compiled import MOST_MISSES, MOST_TRIES
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError, RemoteException, WrongTensor
from tests.tensor.models import CASES, Case

pytestmark = pytest.mark.filterwarnings("ignore:aten")
WARM_UP = 4
"""After so many calls of a training step it's replayed: gradients and the optimiser's state exist, and two
recordings were equal.
"""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def engine_of(mesh: Mesh) -> Any:
    return mesh.tensor_grid().engine


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "foreach adam": lambda p: optim.Adam(p, lr=1e-2, foreach=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-2),
}


def step_of(model: nn.Module, optimizer: optim.Optimizer, loss_of: Any, clip: bool = False) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    return step


class Pair:
    """A model that is trained by a compiled step, and its twin without."""

    def __init__(self, mesh: Mesh, case: Case, make: Any, strategy: str = "ddp", clip: bool = False) -> None:
        plain = case.make()
        self.models = [monarch_nb.module_to_mesh(plain, mesh, strategy=strategy) for _ in range(2)]
        self.optimizers = [make(model.parameters()) for model in self.models]
        self.steps = [
            step_of(*both, case.loss, clip) for both in zip(self.models, self.optimizers, strict=True)
        ]
        self.compiled = monarch_nb.compile(self.steps[1])
        self.case = case

    def step(self, *batch: torch.Tensor) -> None:
        """Take a step of both, and compare everything that can be seen."""
        seed = torch.get_rng_state()
        expected = self.steps[0](*batch)
        torch.set_rng_state(seed)
        found = self.compiled(*batch)
        assert found.item() == expected.item()
        assert (found.requires_grad, found.is_leaf, found.mesh_meta) == (True, False, expected.mesh_meta)
        self.compare()

    def compare(self) -> None:
        differ = []
        for a, b in zip(*([*m.parameters(), *m.buffers()] for m in self.models), strict=True):
            assert a._version == b._version and (a.grad is None) == (b.grad is None)
            differ.append((a != b).sum())
            if a.grad is not None:
                assert a.grad.mesh_meta is b.grad.mesh_meta and a.grad._version == b.grad._version
                differ.append((a.grad != b.grad).sum())
        assert torch.stack(differ).sum().item() == 0


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*(("mlp", each) for each in OPTIMIZERS), *(("gpt", each) for each in ("sgd", "momentum", "adamw"))],
)
def test_ten_steps_are_those_of_the_function(mesh: Mesh, name: str, optimizer: str) -> None:
    pair = Pair(mesh, CASES[name], OPTIMIZERS[optimizer])
    for _ in range(10):
        pair.step(*CASES[name].batch())
    assert pair.compiled.num_replayed >= 10 - WARM_UP


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("gpt", "lstm")])
def test_models_of_all_kinds(mesh: Mesh, name: str) -> None:
    pair = Pair(mesh, CASES[name], OPTIMIZERS["momentum"], "fsdp", clip=True)
    for _ in range(WARM_UP + 2):
        pair.step(*CASES[name].batch())
    assert pair.compiled.num_replayed >= 2


def messages_of(engine: Any, do: Callable[[], Any]) -> list[Batch]:
    """Return the messages that something sends."""
    sent: list[Batch] = []
    send = engine.stream._worker.run.broadcast

    class Endpoint:
        @staticmethod
        def broadcast(batch: Batch) -> None:
            sent.append(batch)
            send(batch)

    worker, engine.stream._worker = (
        engine.stream._worker,
        type("Worker", (), {"run": Endpoint, "reached": engine.stream._worker.reached}),
    )
    try:
        do()
    finally:
        engine.stream._worker = worker
    return sent


def test_a_step_of_a_gpt_is_one_small_message(mesh: Mesh) -> None:
    pair = Pair(mesh, CASES["gpt"], OPTIMIZERS["momentum"])
    engine = engine_of(mesh)
    batch = [monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in CASES["gpt"].batch()]
    for _ in range(WARM_UP):
        pair.compiled(*batch)
    for _ in range(3):
        engine.synchronize()
        before = engine.stream.count
        (message,) = messages_of(engine, lambda: pair.compiled(*batch))
        assert engine.stream.count - before > 100, "that many commands"
        assert len(pickle.dumps(message)) < 1024
        assert not message.definitions and not message.recorded


def test_nothing_grows_with_replays(mesh: Mesh) -> None:
    pair = Pair(mesh, CASES["mlp"], OPTIMIZERS["momentum"])
    engine, batch = engine_of(mesh), CASES["mlp"].batch()
    for _ in range(WARM_UP + 2):
        pair.compiled(*batch)
    gc.collect()
    engine.synchronize()
    live, misses = engine.slots.num_live, engine.num_misses
    for _ in range(200):
        pair.compiled(*batch)
    engine.synchronize()
    assert (engine.slots.num_live, engine.num_misses) == (live, misses)
    assert pair.compiled.num_replayed >= 200 and pair.compiled.num_recorded <= WARM_UP


def test_a_closed_recording_leaves_nothing_on_the_ranks(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.arange(8.0), mesh, ["data_parallel"])
    compiled = monarch_nb.compile(lambda x: ((x + 1) * x).sum())
    engine = engine_of(mesh)
    gc.collect()
    before = engine.slots.num_live
    assert [compiled(x).item() for _ in range(4)] == [168.0] * 4
    assert engine.slots.num_live > before
    compiled.close()
    gc.collect()
    assert engine.slots.num_live == before
    (message,) = messages_of(engine, lambda: (x + 1).sum().item())
    assert len(message.forgotten_parts) == 1
    assert compiled(x).item() == 168.0


def known_parts(mesh: Mesh) -> list[int]:
    from monarch_nb._rank.tensor.executor import executors

    return [len(each._replays._known) for each in executors.values()]


def test_ranks_forget_recordings_of_functions_that_are_gone(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.ones(4), mesh)
    before = mesh.execute(known_parts, mesh=None)
    for n in range(5):
        compiled = monarch_nb.compile(lambda x, n=n: x + n)
        for _ in range(3):
            compiled(x)
        assert compiled.num_replayed == 1
    del compiled
    gc.collect()
    x.sum().item()
    assert mesh.execute(known_parts, mesh=None) == before


# --- keys


def test_another_shape_or_number_is_recorded_anew_and_both_are_kept(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(lambda x, by=2.0: x * by, verify=False)
    small, large = (monarch_nb.distribute(torch.ones(n), mesh, ["data_parallel"]) for n in (4, 8))
    for _ in range(3):
        assert compiled(small).tolist() == [2.0] * 4
        assert compiled(large).tolist() == [2.0] * 8
        assert compiled(small, 3.0).tolist() == [3.0] * 4
        assert compiled(small, by=4.0).tolist() == [4.0] * 4
        assert compiled(monarch_nb.redistribute(small, [None])).tolist() == [2.0] * 4
    assert (compiled.num_recorded, compiled.num_replayed) == (5, 10)
    with torch.no_grad():
        compiled(small)
    assert compiled.num_recorded == 6
    assert compiled(small, 2).dtype == torch.float32 and compiled.num_recorded == 7, "2 isn't 2.0"


def test_the_same_tensor_twice_is_another_call(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(lambda x, y: x.add_(1) + y, verify=False)
    for _ in range(3):
        a, b = monarch_nb.distribute(torch.zeros(2), mesh), monarch_nb.distribute(torch.zeros(2), mesh)
        assert compiled(a, b).tolist() == [1.0, 1.0]
        assert compiled(a, a).tolist() == [4.0, 4.0]
        assert (a.tolist(), b.tolist()) == ([2.0, 2.0], [0.0, 0.0])
        assert (a._version, b._version) == (2, 0)


def test_training_flags_and_attributes_are_seen(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), mesh)
    compiled = monarch_nb.compile(lambda x: model(x).detach())
    x = monarch_nb.distribute(torch.ones(4, 4), mesh)
    expected = model[0](x).full()
    for _ in range(4):
        model.train()
        assert not torch.equal(compiled(x).full(), expected)
        model.eval()
        assert torch.equal(compiled(x).full(), expected)
    model[1].p = 0.0
    model.train()
    assert torch.equal(compiled(x).full(), expected)


def test_parameters_that_are_replaced_are_the_new_ones(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Linear(2, 1, bias=False), mesh)
    compiled = monarch_nb.compile(lambda x: model(x).detach().sum(), verify=False)
    x = torch.ones(2, 2)

    def twice() -> list[float]:
        return [compiled(x).item() for _ in range(2)]

    with torch.no_grad():
        model.weight.fill_(1)
    assert twice() == [4.0, 4.0]
    model.weight.data = monarch_nb.distribute(torch.full((1, 2), 2.0), mesh)
    assert twice() == [8.0, 8.0]
    model.weight = nn.Parameter(monarch_nb.distribute(torch.full((1, 2), 3.0), mesh))
    assert twice() == [12.0, 12.0]


SCALE = 1.0


def test_global_variables_and_closures_are_seen(mesh: Mesh) -> None:
    global SCALE
    shift = 0.0
    other = monarch_nb.distribute(torch.zeros(2), mesh)

    def helper(x: Any) -> Any:
        return x * SCALE + shift

    compiled = monarch_nb.compile(lambda x: helper(x) + other, verify=False)
    x = monarch_nb.distribute(torch.ones(2), mesh)
    try:
        assert [compiled(x).tolist() for _ in range(2)] == [[1.0, 1.0]] * 2
        SCALE = 3.0
        assert [compiled(x).tolist() for _ in range(2)] == [[3.0, 3.0]] * 2
        shift = 0.5
        assert compiled(x).tolist() == [3.5, 3.5]
        other = monarch_nb.distribute(torch.ones(2), mesh)
        assert compiled(x).tolist() == [4.5, 4.5]
        other.add_(1)
        assert compiled(x).tolist() == [5.5, 5.5]
    finally:
        SCALE = 1.0


def test_a_learning_rate_that_changes_is_used(mesh: Mesh) -> None:
    pair = Pair(mesh, CASES["mlp"], OPTIMIZERS["momentum"])
    for n in range(WARM_UP + 6):
        for optimizer in pair.optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 / (n + 1)
        pair.step(*CASES["mlp"].batch())
    assert pair.compiled.num_replayed >= 4, "the optimiser's step is done in Python, the rest is replayed"


def test_an_optimizer_that_cant_be_seen(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Linear(2, 2), mesh)
    hidden = deque([optim.SGD(model.parameters(), lr=1.0)])  # nobody looks into a deque

    def step(x: Any) -> None:
        hidden[0].zero_grad()
        model(x).sum().backward()
        hidden[0].step()

    compiled = monarch_nb.compile(step)
    repeat(WARM_UP + 2, compiled, torch.ones(2, 2))
    assert compiled.num_replayed >= 1
    before = model.bias.tolist()
    hidden[0].param_groups[0]["lr"] = 0.0
    compiled(torch.ones(2, 2))
    assert model.bias.tolist() == before


def test_a_step_with_a_closure(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Linear(2, 2), mesh)
    optimizer = optim.SGD(model.parameters(), lr=1.0)

    def loss_of(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    compiled = monarch_nb.compile(lambda x: optimizer.step(lambda: loss_of(x)).detach())
    repeat(WARM_UP + 1, compiled, torch.ones(2, 2))
    assert compiled.num_replayed >= 1
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(MeshUsageError, match=r"step\(\) of SGD with arguments.*call it outside"):
        compiled(torch.ones(2, 2))


def test_a_scheduler_outside(mesh: Mesh) -> None:
    pair = Pair(mesh, CASES["mlp"], OPTIMIZERS["adamw"])
    schedulers = [optim.lr_scheduler.StepLR(o, 2, 0.5) for o in pair.optimizers]
    for _ in range(8):
        pair.step(*CASES["mlp"].batch())
        for each in schedulers:
            each.step()
    assert pair.compiled.num_replayed >= 3


def test_an_optimizer_outside(mesh: Mesh) -> None:
    case = CASES["mlp"]
    plain = case.make()
    models = [monarch_nb.module_to_mesh(plain, mesh) for _ in range(2)]
    optimizers = [optim.AdamW(m.parameters(), lr=1e-2) for m in models]

    def backward_of(model: nn.Module) -> Any:
        def backward(x: Any, y: Any) -> Any:
            loss = case.loss(model(x), y)
            loss.backward()
            return loss.detach()

        return backward

    compiled = monarch_nb.compile(backward_of(models[1]))
    for _ in range(7):
        batch = case.batch()
        losses = []
        for each, optimizer in zip([backward_of(models[0]), compiled], optimizers, strict=True):
            losses.append(each(*batch))
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(losses[0].full(), losses[1].full())
    assert compiled.num_replayed >= 4


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_summed_over_calls(mesh: Mesh, to_none: bool) -> None:
    case = CASES["mlp"]
    plain = case.make()
    models = [monarch_nb.module_to_mesh(plain, mesh) for _ in range(2)]

    def add(model: Any, x: Any, y: Any) -> None:
        case.loss(model(x), y).backward()

    compiled = monarch_nb.compile(lambda x, y: add(models[1], x, y))
    for turn in range(12):
        batch = case.batch()
        add(models[0], *batch)
        assert compiled(*batch) is None
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(a.grad.full(), b.grad.full()) and a.grad._version == b.grad._version
        if turn % 3 == 2:
            for model in models:
                model.zero_grad(set_to_none=to_none)
    assert compiled.num_replayed >= 6


def test_gradients_that_somebody_holds_stay_as_they_are(mesh: Mesh) -> None:
    pair = Pair(mesh, CASES["mlp"], OPTIMIZERS["sgd"])
    for _ in range(WARM_UP):
        pair.step(*CASES["mlp"].batch())
    held = next(pair.models[1].parameters()).grad
    values = held.full()
    pair.step(*CASES["mlp"].batch())
    assert torch.equal(held.full(), values) and next(pair.models[1].parameters()).grad is not held


# --- random numbers and plain tensors


@pytest.mark.parametrize("name", ["dropout", "rand_like"])
def test_each_replay_draws_new_numbers_as_the_function_would(mesh: Mesh, name: str) -> None:
    def function(x: Any) -> Any:
        if name == "dropout":
            return functional.dropout(functional.dropout(x), 0.1)
        return torch.rand_like(x) + torch.rand_like(x)

    compiled = monarch_nb.compile(function)
    x = monarch_nb.distribute(torch.ones(64), mesh, ["data_parallel"])
    seen = []
    for n in range(6):
        torch.manual_seed(n)
        seen.append(compiled(x).full())
        torch.manual_seed(n)
        assert torch.equal(seen[-1], function(x).full())
    assert compiled.num_replayed == 4
    assert all(not torch.equal(a, b) for a in seen for b in seen if a is not b)


def test_values_of_each_rank_are_drawn_anew(mesh: Mesh) -> None:
    with mesh.activate():
        compiled = monarch_nb.compile(lambda: torch.rand(8), verify=False)
        first, second, third = (monarch_nb.inspect(compiled(), rank=1) for _ in range(3))
    assert compiled.num_replayed == 2
    assert not torch.equal(first, second) and not torch.equal(second, third)


def test_plain_tensors_are_those_of_the_call(mesh: Mesh) -> None:
    outside = torch.ones(3)

    def function(x: Any, plain: torch.Tensor) -> Any:
        spread = monarch_nb.distribute(plain, mesh)
        return x + plain * torch.ones(()) if False else x + spread + outside + torch.tensor([1.0, 2.0, 3.0])

    compiled = monarch_nb.compile(function)
    x = monarch_nb.distribute(torch.zeros(3), mesh)
    for n in range(5):
        assert compiled(x, torch.full((3,), float(n))).tolist() == [n + 2.0, n + 3.0, n + 4.0]
    assert compiled.num_replayed == 3
    outside += 1
    assert compiled(x, torch.zeros(3)).tolist() == [3.0, 4.0, 5.0]
    assert compiled.num_replayed == 4


def test_constants_that_are_changed_begin_anew_with_each_replay(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(
        lambda x: monarch_nb.distribute(torch.zeros(2), mesh).add_(x).mul_(2), verify=False
    )
    x = monarch_nb.distribute(torch.ones(2), mesh)
    assert [compiled(x).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4


def test_a_large_plain_argument_goes_along(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(lambda x: monarch_nb.distribute(x, mesh, ["data_parallel"]).sum())
    engine = engine_of(mesh)
    for n in range(5):
        engine.synchronize()
        results: list[Any] = []
        big = torch.full((1 << 19,), float(n))
        messages = messages_of(engine, lambda: results.append(compiled(big)))  # noqa: B023 - called at once
        big.zero_()
        assert results[0].item() == n * (1 << 19)
        if n > 2:
            assert len(messages) == 1 and len(messages[0].parcels) == 1


# --- results


def test_results_are_what_the_function_returns(mesh: Mesh) -> None:
    outside = monarch_nb.distribute(torch.ones(2), mesh)

    def function(x: Any, plain: Any) -> Any:
        y = x + 1
        return {"y": y, "same": y, "x": x, "plain": plain, "outside": outside, "rest": [1, "two", None]}

    compiled = monarch_nb.compile(function)
    for n in range(5):
        x, plain = monarch_nb.distribute(torch.full((2,), float(n)), mesh), torch.ones(1)
        found = compiled(x, plain)
        assert found["y"].tolist() == [n + 1.0] * 2 and found["same"].tolist() == [n + 1.0] * 2
        assert found["x"] is x and found["plain"] is plain and found["outside"] is outside
        assert found["rest"] == [1, "two", None]
    assert compiled.num_replayed == 3


def test_results_that_share_values_with_tensors_from_outside(mesh: Mesh) -> None:
    w = monarch_nb.distribute(torch.ones(2), mesh).requires_grad_()

    def function(x: Any) -> Any:
        (x * w).sum().backward()
        return w, w.data, w.grad, x.data, w.detach()

    compiled = monarch_nb.compile(function)
    for _ in range(5):
        x = monarch_nb.distribute(torch.ones(2), mesh)
        itself, data, grad, other, detached = compiled(x)
        assert itself is w and grad is w.grad and other is not x
        assert not any(t.requires_grad for t in (data, grad, other, detached))
        with torch.no_grad():
            w.add_(1)
        assert data.tolist() == detached.tolist() == w.tolist()
    assert compiled.num_replayed >= 2


def test_modules_and_optimizers_as_arguments(mesh: Mesh) -> None:
    @monarch_nb.compile
    def step(model: nn.Module, optimizer: optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    plain, x = nn.Linear(2, 2), torch.ones(4, 2)
    losses = []
    for _ in range(2):
        model = monarch_nb.module_to_mesh(plain, mesh)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        losses.append([step(model, optimizer, x).item() for _ in range(WARM_UP + 2)])
    assert losses[0] == losses[1] and step.num_replayed >= 4
    ref = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert ref() is None


def test_the_history_of_a_result_ends_there(mesh: Mesh) -> None:
    w = monarch_nb.distribute(torch.ones(2), mesh).requires_grad_()
    compiled = monarch_nb.compile(lambda x: (x * w).sum())
    x = monarch_nb.distribute(torch.ones(2), mesh)
    for _ in range(4):
        y = compiled(x)
        assert y.requires_grad and not y.is_leaf
        with pytest.raises(MeshUsageError, match=r"call backward\(\) in the function, or return x\.detach"):
            (y * 2).backward()
    assert compiled.num_replayed == 2


def test_arguments_that_require_gradients_get_theirs(mesh: Mesh) -> None:
    def function(x: Any) -> None:
        (x * x).sum().backward()

    compiled = monarch_nb.compile(function)
    for n in range(4):
        x = monarch_nb.distribute(torch.full((2,), float(n)), mesh).requires_grad_()
        compiled(x)
        assert x.grad.tolist() == [2.0 * n] * 2
    assert compiled.num_replayed == 2


def test_a_saved_tensor_that_a_replay_changes_is_noticed(mesh: Mesh) -> None:
    w = monarch_nb.distribute(torch.ones(2), mesh).requires_grad_()

    def function() -> None:
        with torch.no_grad():
            w.mul_(2)

    compiled = monarch_nb.compile(function)
    for _ in range(3):
        compiled()
    loss = (w * w).sum()
    compiled()
    assert compiled.num_replayed == 2 and w.tolist() == [16.0, 16.0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_methods_decorators_and_nesting(mesh: Mesh) -> None:
    class Doubler:
        def __init__(self) -> None:
            self.by = 2.0

        @monarch_nb.compile(verify=False)
        def call(self, x: Any) -> Any:
            """Docs."""
            return inner(x) * self.by

    inner = monarch_nb.compile(lambda x: x + 1)
    doubler = Doubler()
    x = monarch_nb.distribute(torch.ones(2), mesh)
    assert Doubler.call.__doc__ == "Docs."
    assert [doubler.call(x).tolist() for _ in range(3)] == [[4.0, 4.0]] * 3
    doubler.by = 3.0
    assert [doubler.call(x).tolist() for _ in range(2)] == [[6.0, 6.0]] * 2
    assert Doubler.call.num_replayed == 3 and inner.num_recorded == 0
    with monarch_nb.coalescing():
        y = doubler.call(x) + doubler.call(x)
    assert y.tolist() == [12.0, 12.0]


# --- what can't be replayed


COUNT = [0]


def test_a_call_that_does_something_else(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.ones(2), mesh)
    numbers: Iterator[float] = iter(range(10))
    compiled = monarch_nb.compile(lambda x: x * float(next(numbers)))
    assert compiled(x).tolist() == [0.0, 0.0]
    with pytest.raises(
        MeshUsageError, match=r"a number of aten\.mul.* was 0 first, then 1.*replay"
    ) as caught:
        compiled(x)
    assert "test_recordings.py, line" in str(caught.value) and "is to be an argument" in str(caught.value)
    flips = iter([True, False])
    compiled = monarch_nb.compile(lambda x: x + x if next(flips) else x - x)
    compiled(x)
    with pytest.raises(MeshUsageError, match=r"it did aten\.add\.Tensor first, then aten\.sub\.Tensor"):
        compiled(x)


def test_what_this_process_computes(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.ones(2), mesh)
    plain = torch.ones(2)
    for function, words in [
        (lambda x, p: x + p.exp(), "computed from others in this process"),
        (lambda x, p: x + p[:1], "computed from others in this process"),
        (lambda x, p: x * p.sum().item(), "reads a number from a plain tensor"),
        (lambda x, p: x + p.add_(1), "changes a plain tensor of this process"),
        (lambda x, p: x + torch.rand(2), "draws random numbers in this process"),
        (lambda x, p: (x + 1, torch.ones(2)), "returns a Tensor, which a replay wouldn't make again"),
        (lambda x, p: (x + 1, object()), "returns a object"),
    ]:
        with pytest.raises(MeshUsageError, match=words):
            monarch_nb.compile(function)(x, plain)
    assert plain.tolist() == [1.0, 1.0]


def test_wrong_arguments(mesh: Mesh, own_mesh: Mesh) -> None:
    x, other = monarch_nb.distribute(torch.ones(2), mesh), monarch_nb.distribute(torch.ones(2), own_mesh)
    with pytest.raises(WrongTensor, match="compile takes a function, not int"):
        monarch_nb.compile(3)
    with pytest.raises(WrongTensor, match="takes tensors, numbers and strings, not ndarray"):
        monarch_nb.compile(lambda x: x)(torch.ones(2).numpy())
    with pytest.raises(WrongTensor, match="uses tensors of one mesh, not of two"):
        monarch_nb.compile(lambda x, y: (x + 1, y + 1))(x, other)
    hidden = iter([other])
    with pytest.raises(WrongTensor, match="uses tensors of one mesh, not of two"):
        monarch_nb.compile(lambda x: (x + 1, next(hidden) + 1))(x)
    assert (x + 1).tolist() == (other + 1).tolist() == [2.0, 2.0]
    y = x.requires_grad_() * 2
    with pytest.raises(MeshUsageError, match=r"with a history of its own.*x\.detach\(\)"):
        monarch_nb.compile(lambda y: (y * 2).sum().backward())(y)
    compiled = monarch_nb.compile(lambda x: x + 1, verify=False)
    compiled(x.detach())
    gone = x.detach()
    gone.drop()
    with pytest.raises(WrongTensor, match="DROPPED"):
        compiled(gone)


def test_a_function_that_raises_is_recorded_later(mesh: Mesh) -> None:
    fails = [True]

    def function(x: Any) -> Any:
        y = x + 1
        if fails and fails.pop():
            raise KeyError("not today")
        return y

    compiled = monarch_nb.compile(function)
    x = monarch_nb.distribute(torch.ones(2), mesh)
    with pytest.raises(KeyError, match="not today"):
        compiled(x)
    assert [compiled(x).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4
    assert compiled.num_replayed >= 1


def repeat(num: int, function: Any, *args: Any) -> None:
    for _ in range(num):
        function(*args)


def test_a_tensor_that_outlives_the_call_keeps_it_from_being_replayed(mesh: Mesh) -> None:
    kept: deque[Any] = deque()

    def step(x: Any) -> Any:
        y = x + 1
        kept.append(y)
        return y * 2

    compiled = monarch_nb.compile(step)
    x = monarch_nb.distribute(torch.ones(2), mesh)
    with pytest.warns(UserWarning, match=r"step isn't replayed.*outlives the call.*in step:  y = x \+ 1"):
        repeat(MOST_TRIES, compiled, x)
    compiled(x)
    assert compiled.num_replayed == 0 and compiled.num_recorded == MOST_TRIES
    assert [t.tolist() for t in kept] == [[2.0, 2.0]] * (MOST_TRIES + 1)


def test_python_that_changes_something_keeps_it_from_being_replayed(mesh: Mesh) -> None:
    calls = 0

    def step(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x + 1

    compiled = monarch_nb.compile(step)
    x = monarch_nb.distribute(torch.ones(2), mesh)
    with pytest.warns(UserWarning, match="it changes calls in Python, which a replay doesn't run"):
        repeat(MOST_TRIES, compiled, x)
    assert calls == MOST_TRIES


def test_what_changes_before_each_call_keeps_it_from_being_replayed(mesh: Mesh) -> None:
    number = 0
    compiled = monarch_nb.compile(lambda x: x + number)
    x = monarch_nb.distribute(torch.ones(2), mesh)
    for number in range(MOST_MISSES - 1):
        assert compiled(x).full().tolist() == [1.0 + number] * 2
    number = MOST_MISSES
    with pytest.warns(UserWarning, match="each call differs from those before: number"):
        assert compiled(x).full().tolist() == [1.0 + number] * 2


def test_a_scheduler_inside_keeps_it_from_being_replayed(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Linear(2, 2), mesh)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()

    compiled = monarch_nb.compile(step)
    with pytest.warns(UserWarning, match=r"step isn't replayed.*it changes .*lr.*in Python"):
        repeat(8, compiled, torch.ones(2, 2))
    assert optimizer.param_groups[0]["lr"] == 0.5**8 and compiled.num_replayed == 0


def test_a_shape_that_is_changed_in_place_keeps_it_from_being_replayed(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(lambda x: x.squeeze_() + 1)

    def call() -> None:
        x = monarch_nb.distribute(torch.ones(2, 1), mesh)
        assert compiled(x).shape == x.shape == (2,)

    with pytest.warns(UserWarning, match="changes the shape of a tensor from outside"):
        repeat(6, call)


def test_other_results_are_noticed(mesh: Mesh) -> None:
    numbers = iter(range(5))
    compiled = monarch_nb.compile(lambda x: (x + 1, next(numbers)))
    x = monarch_nb.distribute(torch.ones(2), mesh)
    assert compiled(x)[1] == 0
    with pytest.raises(MeshUsageError, match="it returned something else"):
        compiled(x)


def test_a_mesh_that_was_stopped() -> None:
    compiled = monarch_nb.compile(lambda x: x + 1)
    with Mesh((1,), ("data_parallel",)) as mesh:
        x = monarch_nb.distribute(torch.ones(2), mesh)
        assert [compiled(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    with pytest.raises(DeviceMeshError, match=r"stopped|closed|dead"):
        compiled(x).tolist()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_module_that_runs_on_the_ranks(mesh: Mesh, strategy: str) -> None:
    case = CASES["mlp"]
    plain = case.make()
    models = [monarch_nb.parallelize(plain, mesh, strategy=strategy) for _ in range(2)]
    optimizers = [optim.AdamW(m.parameters(), lr=1e-2) for m in models]
    ordinary, step = (step_of(*both, case.loss) for both in zip(models, optimizers, strict=True))
    compiled = monarch_nb.compile(step)
    for _ in range(WARM_UP + 2):
        batch = case.batch()
        assert compiled(*batch).item() == ordinary(*batch).item()
    assert compiled.num_replayed >= 2


# --- failures


def test_a_failure_in_a_replay_names_the_line_and_the_layer(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Sequential(nn.Identity(), nn.Embedding(4, 2)), mesh)

    def function(x: Any) -> Any:
        before = x + 0
        return before, model(x).sum().detach()

    compiled = monarch_nb.compile(function)
    good = monarch_nb.distribute(torch.tensor([0, 3]), mesh)
    expected, *_ = [compiled(good)[1].item() for _ in range(3)]
    bad = monarch_nb.distribute(torch.tensor([0, 9]), mesh)
    kept, lost = compiled(bad)
    assert compiled.num_replayed == 2
    with pytest.raises(RemoteException, match=r"(?s)embedding.* failed on ranks 0-3") as caught:
        lost.item()
    text = str(caught.value)
    assert "in forward of 1 (Embedding)" in text and "in function:  return before, model(x)" in text
    assert kept.tolist() == [0, 9], "what doesn't depend on it is good"
    assert compiled(good)[1].item() == expected


def fails_on_one(x: torch.Tensor) -> Any:
    from monarch_nb.actor import current_rank

    total = x.full_tensor().sum()  # type: ignore[operator]
    if current_rank().rank == 1 and total > 2:
        raise ValueError("no luck here")
    return x.sum()


def test_one_rank_fails_in_a_replay_where_the_others_wait(mesh: Mesh) -> None:
    remote = monarch_nb.remote(fails_on_one, propagate="cached")
    x = monarch_nb.distribute(torch.tensor([1.0, 0.0, 0.0, 0.0]), mesh, ["data_parallel"])
    assert remote(x).item() == 1.0

    def function(x: Any) -> Any:
        y = x * 2
        z = remote(x)
        return y, z + y.sum(), (y @ y).sum()

    compiled = monarch_nb.compile(function)
    for _ in range(3):
        assert [t.tolist() for t in compiled(x)[1:]] == [3.0, 4.0]
    _, lost, _ = compiled(x * 3)
    with pytest.raises(DeviceMeshError, match="ValueError: no luck here"):
        lost.item()
    for _ in range(2):
        assert [t.tolist() for t in compiled(x)[1:]] == [3.0, 4.0]
    assert compiled.num_replayed == 4


def test_after_a_heal_it_is_recorded_anew(own_mesh: Mesh) -> None:
    mesh = own_mesh
    state: dict[str, Any] = {}

    @monarch_nb.compile
    def step(x: Any) -> Any:
        loss = state["model"](x).square().sum()
        state["optimizer"].zero_grad()
        loss.backward()
        state["optimizer"].step()
        return loss.detach()

    plain = nn.Linear(3, 1)

    def begin() -> None:
        state["model"] = monarch_nb.module_to_mesh(plain, mesh)
        state["optimizer"] = optim.SGD(state["model"].parameters(), lr=0.01)

    begin()
    x = torch.ones(4, 3)
    first = [step(x).item() for _ in range(7)]
    assert step.num_replayed >= 3
    pid = list(mesh.procs.execute(os.getpid).get(60).values())[1]
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid, 30)
    with pytest.raises(DeviceMeshError):
        step(x).item()
    mesh = monarch_nb.heal_mesh(mesh)
    with pytest.raises(DeviceMeshError):
        step(x).item()
    begin()
    before = step.num_replayed
    assert [step(x).item() for _ in range(7)] == first
    assert step.num_replayed >= before + 3


def test_a_function_that_is_gone_frees_the_model(mesh: Mesh) -> None:
    pair = Pair(mesh, CASES["mlp"], OPTIMIZERS["adamw"])
    for _ in range(WARM_UP + 1):
        pair.step(*CASES["mlp"].batch())
    ref = weakref.ref(next(pair.models[1].parameters()))
    model, compiled = pair.models[1], pair.compiled
    del pair
    gc.collect()
    assert ref() is not None
    compiled.close()
    del model, compiled
    gc.collect()
    assert ref() is None


def test_plans_of_a_recording_are_not_forgotten(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    x = monarch_nb.distribute(torch.arange(8.0), mesh, ["data_parallel"])
    compiled = monarch_nb.compile(lambda x: ((x + 5) * x).cos().sum())
    expected = ((torch.arange(8.0) + 5) * torch.arange(8.0)).cos().sum()
    for _ in range(3):
        torch.testing.assert_close(compiled(x).full(), expected)
    monkeypatch.setattr(controller, "MAX_PLANS", 60)
    for n in range(120):  # shapes that are new each time, in messages of their own
        (monarch_nb.distribute(torch.ones(n + 1), mesh) * 2).sum().item()
    other = monarch_nb.distribute(torch.ones(3), mesh)
    for _ in range(KEPT_MESSAGES):  # until no rank keeps one of those before: then plans are given up
        (other * 2).sum().item()
    assert len(engine_of(mesh).definitions) < 200
    torch.testing.assert_close(compiled(x).full(), expected)
    assert compiled.num_recorded == 2
