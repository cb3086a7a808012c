"""What can't be sent to the ranks is an error where it's given, and nothing that was done before is lost."""

from __future__ import annotations

import array
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import monarch_nb
from monarch_nb._rank.tensor.protocol import SINGLE, Batch, Definition, Hole
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError
from tests.tensor.test_short_commands import Alone


def test_a_function_that_cant_be_sent(mesh: Mesh) -> None:
    lock = threading.Lock()
    x = monarch_nb.distribute(torch.ones(8), mesh, ["data_parallel"])
    before = x + 1
    with pytest.raises(TypeError, match=r"the function, .*`lock`: cannot pickle '_thread\.lock' object"):
        mesh.execute(lambda t: (lock, t), x)
    with pytest.raises(TypeError, match=r"its arguments, .*cannot pickle '_thread\.lock' object"):
        mesh.execute(lambda t, _: t, x, lock)
    assert torch.equal(before.full(), torch.full((8,), 2.0))
    assert torch.equal((x * 3).full(), torch.full((8,), 3.0))


def test_what_is_sent_is_what_it_was_when_it_was_given(mesh: Mesh) -> None:
    given = [1.0]
    x = monarch_nb.distribute(torch.ones(8), mesh, ["data_parallel"])
    made = mesh.execute(lambda t, number: t * number[0], x, given)
    given[0] = 5.0
    assert torch.equal(made.full(), torch.ones(8))


def test_a_module_that_cant_be_sent(mesh: Mesh) -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    net[1].guard = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(
        MeshUsageError, match=r"the module, .*key '1', attribute `guard`: .*open files, locks"
    ):
        monarch_nb.parallelize(net, mesh)
    del net[1].guard
    model = monarch_nb.parallelize(net, mesh)
    x = torch.randn(8, 6)
    assert torch.allclose(model(x).full(), net(x), atol=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parameters_that_are_computed_from_others(mesh: Mesh, name: str, strategy: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(getattr(parametrizations, name)(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 4))
    kind = type(plain[0])
    model = monarch_nb.parallelize(plain, mesh, strategy)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
    for _ in range(3):
        x = torch.randn(8, 6)
        losses = [each(x).square().mean() for each in (model, plain)]
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    assert type(plain[0]) is kind and "__reduce_ex__" not in vars(kind)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("was_sent", [False, True])
def test_what_couldnt_be_sent_is_sent_with_what_comes_next(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, error: BaseException, was_sent: bool
) -> None:
    x = monarch_nb.distribute(torch.ones(8), mesh, ["data_parallel"])
    x.engine.synchronize()
    send = type(x.engine.stream)._send
    fails = [error]

    def fail(stream: Any, batch: Batch) -> None:
        if was_sent or not fails:
            send(stream, batch)
        if fails:
            raise fails.pop()

    with monkeypatch.context() as patch, x.engine.stream.hold():
        y = x + 1
        x.add_(10)
        patch.setattr(type(x.engine.stream), "_send", fail)
        with pytest.raises(type(error)):
            y.full()
    assert torch.equal(y.full(), torch.full((8,), 2.0))
    assert torch.equal(x.full(), torch.full((8,), 11.0)), "done once"


ADD = Definition(1, "aten.add_.Tensor", (Hole(0), Hole(1)), (), 2, 0, (), (0,))
KEEP = Definition(2, "own.keep", (Hole(0),), (), 1, 0, (SINGLE,))


def test_a_message_that_came_before_is_left_out() -> None:
    alone = Alone(torch.zeros(1), torch.ones(1))
    words = array.array("I", [1, 0, 1]).tobytes()
    message = Batch(0, 2, words, definitions=(ADD,), number=1)
    for _ in range(3):
        alone.executor.run(message)
    assert alone.executor._table[0].item() == 1
    with pytest.raises(RuntimeError, match="message 3 came after message 1"):
        alone.executor.run(Batch(2, 2, words, number=3))
