"""Compiled functions that read values of the mesh do what they'd do without that."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import monarch_nb
from monarch_nb._tensor.compiled import MOST_STRAYS, MOST_TRIES
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError, RemoteException
from tests.tensor.test_recordings import OPTIMIZERS, WARM_UP, engine_of, messages_of, repeat

pytestmark = pytest.mark.filterwarnings("ignore:aten")
Make = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Twins:
    """A function that is compiled, and the same one that isn't, each with a model of its own."""

    def __init__(self, mesh: Mesh, model: nn.Module, optimizer: str, make: Make) -> None:
        self.models = [monarch_nb.module_to_mesh(model, mesh, strategy="ddp") for _ in range(2)]
        self.optimizers = [OPTIMIZERS[optimizer](m.parameters()) for m in self.models]
        plain, other = (make(*both) for both in zip(self.models, self.optimizers, strict=True))
        self.compiled = monarch_nb.compile(other)
        self._functions = [plain, self.compiled]

    def call(self, *args: Any) -> Any:
        """Call both, and compare everything that can be seen."""
        outcomes, states = [], []
        state = torch.get_rng_state()
        for each in self._functions:
            torch.set_rng_state(state)
            outcomes.append(outcome_of(each, args))
            states.append(torch.get_rng_state())
        assert repr(outcomes[0]) == repr(outcomes[1])
        assert torch.equal(*states), "as many random numbers were drawn"
        self.compare()
        return outcomes[0]

    def compare(self) -> None:
        differ = []
        for a, b in zip(*([*m.parameters(), *m.buffers()] for m in self.models), strict=True):
            assert a._version == b._version and (a.grad is None) == (b.grad is None)
            differ.append(differing(a, b))
            if a.grad is not None:
                assert a.grad.mesh_meta is b.grad.mesh_meta and a.grad._version == b.grad._version
                differ.append(differing(a.grad, b.grad))
        assert torch.stack(differ).sum().item() == 0


def differing(a: Any, b: Any) -> Any:
    return (~((a == b) | (a.isnan() & b.isnan()))).sum()


def outcome_of(function: Any, args: Any) -> Any:
    try:
        return function(*args)
    except ValueError as error:
        return error


def losing(model: Any, optimizer: Any, then: Callable[[Any], Any]) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return then(loss)

    return step


def rows(scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 4) * scale, torch.randn(8, 2) * scale


def network(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(dropout), nn.Tanh(), nn.Linear(6, 2))


# --- values that are only returned


def returned_at_the_end(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def returned_with_others(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        value = loss.item()
        loss.backward()
        norm = float(model[0].weight.grad.norm())
        optimizer.step()
        each = (model(x) - y).square().mean(1).detach().tolist()
        return {"loss": value, "again": value, "norm": norm}, each

    return step


def returned_under_no_grad(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            loss = functional.mse_loss(model(x), y)
            return loss.item()

    return step


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw", "foreach adam"])
@pytest.mark.parametrize("make", [returned_at_the_end, returned_with_others, returned_under_no_grad])
def test_values_that_are_returned(mesh: Mesh, make: Make, optimizer: str) -> None:
    twins = Twins(mesh, network(0.3), optimizer, make)
    seen = {repr(twins.call(*rows())) for _ in range(WARM_UP + 4)}
    assert len(seen) == WARM_UP + 4, "a value of each call's own"
    assert twins.compiled.num_replayed >= 4


def test_a_number_of_right_answers(mesh: Mesh) -> None:
    def function(x: Any, y: Any) -> Any:
        right = (x.argmax(1) == y).sum()
        return right.item(), x.sum().item()

    compiled = monarch_nb.compile(function)
    for _ in range(10):
        x, y = torch.randn(8, 3), torch.randint(3, (8,))
        on_mesh = [monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in (x, y)]
        assert compiled(*on_mesh)[0] == (x.argmax(1) == y).sum().item()
    assert compiled.num_replayed >= 6


def test_an_integer_that_may_be_another_one(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(lambda x: (x.sum().item(), 2))
    for n in (2, 2, 3, 2, 4, 5, 2):
        x = monarch_nb.distribute(torch.tensor([n]), mesh)
        assert compiled(x) == (n, 2)


def test_a_whole_tensor_that_is_returned(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(lambda x: (x * 2).full())
    for n in range(6):
        x = torch.full((40,), float(n))
        assert torch.equal(compiled(monarch_nb.distribute(x, mesh, ["data_parallel"])), x * 2)
    assert compiled.num_replayed == 4


def test_a_read_at_the_end_costs_no_message_of_commands(mesh: Mesh) -> None:
    twins = Twins(mesh, network(), "momentum", returned_at_the_end)
    batch = [monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in rows()]
    for _ in range(WARM_UP):
        twins.compiled(*batch)
    for _ in range(3):
        engine_of(mesh).synchronize()
        (message,) = messages_of(engine_of(mesh), lambda: twins.compiled(*batch))
        assert len(pickle.dumps(message)) < 1024 and not message.definitions and not message.recorded


def test_a_failure_before_a_read_keeps_the_rest_from_being_done(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Embedding(4, 2), mesh)
    optimizer = optim.SGD(model.parameters(), lr=1.0)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        value = loss.item()
        loss.backward()
        optimizer.step()
        return value

    compiled = monarch_nb.compile(step)
    good, bad = (monarch_nb.distribute(torch.tensor(each), mesh) for each in ([0, 3], [0, 9]))
    repeat(WARM_UP + 1, compiled, good)
    before = model.weight.full()
    with pytest.raises(RemoteException, match="in step:  loss = model"):
        compiled(bad)
    assert torch.equal(model.weight.full(), before)
    compiled(good)
    assert compiled.num_replayed >= 2 and not torch.equal(model.weight.full(), before)


# --- values that decide


def clipping(model: Any, optimizer: Any) -> Any:
    def then(loss: Any) -> Any:
        norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
        if norm > 0.7:
            for each in model.parameters():
                each.grad.mul_(0.7 / norm)
        optimizer.step()
        return loss.item()

    return losing(model, optimizer, then)


def guarded(model: Any, optimizer: Any) -> Any:
    def then(loss: Any) -> Any:
        if not torch.isfinite(loss):
            return None
        optimizer.step()
        return loss.item()

    return losing(model, optimizer, then)


def raising(model: Any, optimizer: Any) -> Any:
    def then(loss: Any) -> Any:
        if loss > 20:
            raise ValueError("the loss explodes")
        optimizer.step()
        return "good"

    return losing(model, optimizer, then)


def scaled(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        (loss * 1024.0).backward()
        gradients = [p.grad for p in model.parameters()]
        torch._foreach_mul_(gradients, 1 / 1024.0)
        found_inf = torch.stack([(~torch.isfinite(g)).any() for g in gradients]).any()
        if not found_inf.item():
            optimizer.step()
        return loss.item()

    return step


def before_the_backward(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = model(x)
        loss = functional.mse_loss(out, y)
        if loss > 1.5:
            loss = functional.smooth_l1_loss(out, y)
            if loss > 1.0:
                loss = loss * 0.5
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


SCALES = [1, 1, 1, 1, 1, 1, 3, 1, 3, 1, 3, 3, 1, 1, 30, 1, 3, 1]


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("make", [clipping, guarded, raising, scaled, before_the_backward])
def test_values_that_decide(mesh: Mesh, make: Make, optimizer: str) -> None:
    twins = Twins(mesh, network(0.3), optimizer, make)
    seen = set()
    for scale in SCALES:
        x, y = rows(scale)
        if make in (guarded, scaled) and scale == 30:
            x[0, 0] = math.inf
        outcome = twins.call(x, y)
        seen.add(repr(outcome) if make in (guarded, raising) else "")
    assert twins.compiled.num_replayed >= 6


def test_a_branch_that_is_met_late(mesh: Mesh) -> None:
    """What was replayed is forgotten, and the function is called; nothing is done twice."""
    twins = Twins(mesh, network(0.3), "momentum", guarded)
    for _ in range(WARM_UP + 2):
        twins.call(*rows())
    replayed = twins.compiled.num_replayed
    held = [next(m.parameters()).grad for m in twins.models]
    values = held[1].full()
    assert twins.call(torch.full((8, 4), math.nan), rows()[1]) is None
    assert twins.compiled.num_replayed == replayed
    assert torch.equal(held[1].full(), values), "a gradient that is held stays as it is"
    for _ in range(3):
        twins.call(*rows())
        assert twins.call(torch.full((8, 4), math.nan), rows()[1]) is None
    assert twins.compiled.num_replayed >= replayed + 4, "both are replayed now"


@pytest.mark.filterwarnings("ignore:.*isn't replayed")
def test_gradients_that_are_summed_are_changed_once(mesh: Mesh) -> None:
    def make(model: Any, optimizer: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            if loss > 2:
                optimizer.zero_grad()
            return loss.item()

        return step

    twins = Twins(mesh, network(), "sgd", make)
    for scale in SCALES:
        twins.call(*rows(scale))


def test_both_branches_cost_two_messages(mesh: Mesh) -> None:
    twins = Twins(mesh, network(), "momentum", clipping)
    batches = [[monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in rows(s)] for s in (0.3, 5)]
    for _ in range(WARM_UP + 2):
        for batch in batches:
            twins.compiled(*batch)
    before = twins.compiled.num_replayed
    for batch in batches:
        engine_of(mesh).synchronize()
        found = messages_of(engine_of(mesh), lambda: twins.compiled(*batch))  # noqa: B023 - called at once
        assert len(found) == 2 and sum(len(pickle.dumps(m)) for m in found) < 2048
    assert twins.compiled.num_replayed == before + 2


def test_nothing_grows_with_branches_that_are_replayed(mesh: Mesh) -> None:
    twins = Twins(mesh, network(), "momentum", clipping)
    engine = engine_of(mesh)
    batches = [[monarch_nb.distribute(t, mesh, ["data_parallel"]) for t in rows(s)] for s in (0.3, 5)]
    for n in range(WARM_UP + 8):
        twins.compiled(*batches[n % 2])
    engine.synchronize()
    live, misses = engine.slots.num_live, engine.num_misses
    for n in range(60):
        twins.compiled(*batches[n % 2])
    assert (engine.slots.num_live, engine.num_misses) == (live, misses)
    twins.compiled.close()


def test_values_in_a_loop_and_in_a_helper(mesh: Mesh) -> None:
    def is_large(x: Any) -> bool:
        return bool((x.sum() > 20).item())

    def function(x: Any) -> Any:
        times = 0
        while not is_large(x):
            x, times = x * 2, times + 1
        return x, times

    compiled = monarch_nb.compile(function)
    for n in (3, 3, 3, 3, 1, 1, 1, 3, 9, 9, 9, 1, 9, 3):
        x = monarch_nb.distribute(torch.full((4,), float(n)), mesh, ["data_parallel"])
        found, expected = compiled(x), function(x)
        assert found[0].tolist() == expected[0].tolist() and found[1] == expected[1]
    assert compiled.num_replayed >= 6


# --- values that keep a function from being replayed


def best_of(model: Any, optimizer: Any) -> Any:
    best = [math.inf]

    def then(loss: Any) -> Any:
        value = loss.item()
        if value < best[0]:
            best[0] = value
            optimizer.step()
        return best[0]

    return losing(model, optimizer, then)


def rate_by_loss(model: Any, optimizer: Any) -> Any:
    def then(loss: Any) -> Any:
        optimizer.param_groups[0]["lr"] = min(0.1, loss.item() / 10)
        optimizer.step()
        return loss.detach().mul(1.0).item()

    return losing(model, optimizer, then)


def listed(model: Any, optimizer: Any) -> Any:
    losses: list[float] = []

    def then(loss: Any) -> Any:
        optimizer.step()
        losses.append(loss.item())
        return list(losses)

    return losing(model, optimizer, then)


def compared_here(model: Any, optimizer: Any) -> Any:
    def then(loss: Any) -> Any:
        if loss.item() > 1.0:
            optimizer.step()
        return loss.item()

    return losing(model, optimizer, then)


def stopping_after_the_step(model: Any, optimizer: Any) -> Any:
    def then(loss: Any) -> Any:
        optimizer.step()
        return "stop" if loss < 0.9 else "go on"

    return losing(model, optimizer, then)


def generated(model: Any, optimizer: Any) -> Any:
    def losses(loss: Any) -> Any:
        for n in range(3):
            yield (loss * n).item()

    def then(loss: Any) -> Any:
        optimizer.step()
        return sum(losses(loss))

    return losing(model, optimizer, then)


@pytest.mark.filterwarnings("ignore:.*replay")
@pytest.mark.parametrize(
    "make", [best_of, rate_by_loss, listed, compared_here, stopping_after_the_step, generated]
)
def test_whatever_a_value_is_used_for(mesh: Mesh, make: Make) -> None:
    twins = Twins(mesh, network(0.3), "momentum", make)
    for scale in [1, 1, 2, 1, 1, 1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 2]:
        twins.call(*rows(scale))
    assert twins.compiled.num_replayed == 0


def test_a_scheduler_that_looks_at_the_loss(mesh: Mesh) -> None:
    def make(model: Any, optimizer: Any) -> Any:
        scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

        def then(loss: Any) -> Any:
            optimizer.step()
            scheduler.step(loss.item())
            return optimizer.param_groups[0]["lr"]

        return losing(model, optimizer, then)

    twins = Twins(mesh, network(), "sgd", make)
    with pytest.warns(UserWarning, match="isn't replayed|without a replay"):
        rates = {twins.call(*rows()) for _ in range(14)}
    assert len(rates) > 1


def test_a_number_that_is_another_one_in_each_call(mesh: Mesh) -> None:
    def function(x: Any) -> Any:
        if x.sum().item() > 2:
            return x + 1
        return x

    compiled = monarch_nb.compile(function)

    def call(n: float) -> None:
        x = monarch_nb.distribute(torch.tensor([n, 1.0]), mesh)
        assert compiled(x).tolist() == ([n + 1, 2.0] if n > 1 else [n, 1.0])

    def calls() -> None:
        for n in range(MOST_STRAYS + 2):
            call(n / 4)

    with pytest.warns(UserWarning, match=r"(?s)is another one in each call.*, in function:  if x.*as in `if"):
        calls()
    recorded = compiled.num_recorded
    call(0.125)
    assert compiled.num_recorded == recorded, "it isn't tried any more"


def test_a_value_that_decides_after_something_was_changed(mesh: Mesh) -> None:
    total = monarch_nb.distribute(torch.zeros(2), mesh)

    def function(x: Any) -> Any:
        total.add_(x)
        if (total > 4).any():
            total.zero_()

    compiled = monarch_nb.compile(function)
    x = monarch_nb.distribute(torch.ones(2), mesh)
    with pytest.warns(UserWarning, match=r"(?s)after it has changed something.*in function:  if \(total"):
        repeat(MOST_TRIES, compiled, x)
    for n in (0, 1, 2, 3, 4, 0):
        assert total.tolist() == [float((n + 4) % 5)] * 2
        compiled(x)
    assert compiled.num_replayed == 0 and total.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("how", ["view", "data", "buffer", "remote", "numbers of each rank"])
def test_changes_that_hide(mesh: Mesh, how: str) -> None:
    w = monarch_nb.distribute(torch.ones(4), mesh)
    norm = monarch_nb.module_to_mesh(nn.BatchNorm1d(2), mesh)
    remote = monarch_nb.remote(lambda x: x + 0, propagate=lambda x: x + 0)

    def function(x: Any) -> Any:
        if how == "view":
            w.detach().view(2, 2)[0].add_(1)
        elif how == "data":
            w.data.view(2, 2)[0].add_(1)
        elif how == "buffer":
            x = norm(x).detach()
        elif how == "numbers of each rank":
            with mesh.activate():
                torch.rand(2)
        else:
            with mesh.activate():
                y = torch.ones(2)
            remote(y)
        return 1 if x.sum() > 1e6 else 0

    compiled = monarch_nb.compile(function)
    x = monarch_nb.distribute(torch.ones(4, 2), mesh)
    with pytest.warns(UserWarning, match="after it has changed something"):
        repeat(WARM_UP + 2, compiled, x)
    assert compiled.num_replayed == 0


def test_numbers_that_are_printed(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: Any) -> Any:
        y = x.sum()
        print(y, f"{y:.1f}")
        return y

    compiled = monarch_nb.compile(function)

    def calls() -> None:
        for n in range(MOST_TRIES + 2):
            x = monarch_nb.distribute(torch.full((2,), float(n)), mesh)
            assert compiled(x).item() == 2 * n
            assert capsys.readouterr().out.startswith(f"Tensor({2 * n}., shape=[]"), "as without compile"

    with pytest.warns(UserWarning, match=r"(?s)it makes text of a tensor's numbers.*print\(y"):
        calls()


def test_many_numbers_that_may_decide(mesh: Mesh) -> None:
    compiled = monarch_nb.compile(lambda x: sum(x.tolist()))
    x = monarch_nb.distribute(torch.ones(100), mesh)
    with pytest.warns(UserWarning, match=r"(?s)many numbers that it reads may decide.*after the call"):
        repeat(MOST_TRIES, compiled, x)
    assert compiled(x) == 100.0 and compiled.num_replayed == 0


def test_each_ranks_values(mesh: Mesh) -> None:
    def function() -> Any:
        y = torch.ones(2)
        return 5 if monarch_nb.inspect(y, rank=1).sum() > 1 else 6

    with mesh.activate():
        compiled = monarch_nb.compile(function)
        assert [compiled() for _ in range(4)] == [5] * 4
    assert compiled.num_replayed == 2


def test_what_is_still_refused(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.ones(2), mesh)
    for inside in (
        lambda x: x.nonzero(),
        lambda x: mesh.execute(lambda y: y, x),
        lambda x: monarch_nb.fetch_shard(x).get(),
    ):
        with pytest.raises(MeshUsageError, match="needs a value of the mesh here in a way that a replay"):
            monarch_nb.compile(inside)(x)
    assert (x + 1).tolist() == [2.0, 2.0], "nothing is left over"
