"""Training that's saved goes on from there: after a death, and on other ranks."""

from __future__ import annotations

import copy
import os
import signal
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from waiting import wait_until

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError, RemoteException
from tests.tensor.models import CASES, Batch

CASE = CASES["batch norm"]  # has buffers, too


def step(model: nn.Module, optimizer: Any, batch: Batch) -> float:
    optimizer.zero_grad()
    loss = CASE.loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return float(loss.item())


def test_a_rank_dies_in_the_middle_and_training_goes_on(own_mesh: Mesh, tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = CASE.make()
    batches = [CASE.batch() for _ in range(6)]
    reference = optim.AdamW(plain.parameters(), lr=1e-2)
    model = monarch_nb.parallelize(plain, own_mesh)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    wanted = [step(plain, reference, each) for each in batches]
    pids = list(own_mesh.procs.execute(os.getpid).get(60).values())
    losses: list[float] = []
    at, has_died = 0, False
    while at < len(batches):
        try:
            if at == 4 and not has_died:
                has_died = True
                os.kill(pids[1], signal.SIGKILL)
            losses[at:] = [step(model, optimizer, batches[at])]
            at += 1
            if at == 3:
                monarch_nb.save(tmp_path / "run", model, optimizer, step=at)
        except DeviceMeshError:
            assert has_died
            monarch_nb.heal_mesh(own_mesh)
            at = monarch_nb.restore(tmp_path / "run", model, optimizer)["step"]
    assert losses == pytest.approx(wanted, abs=1e-6)
    assert os.listdir(tmp_path) == ["run"]


def test_a_parameter_without_gradients_has_no_state(mesh: Mesh, tmp_path: Path) -> None:
    case = CASES["sparse attention"]  # its gate only chooses
    model = monarch_nb.parallelize(case.make(), mesh)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    case.loss(model(case.batch()[0]), case.batch()[1]).backward()
    optimizer.step()
    assert model[1].gate.grad is None and len(optimizer.state) == 6
    monarch_nb.save(tmp_path / "run", model, optimizer)
    monarch_nb.restore(tmp_path / "run", model, optimizer)
    assert len(optimizer.state) == 6
    assert all(state["step"] == 1 for state in optimizer.state.values())


def test_other_ranks_and_another_strategy_read_it(mesh: Mesh, own_mesh: Mesh, tmp_path: Path) -> None:
    plain = CASE.make()
    batch = CASE.batch()
    sharded = monarch_nb.parallelize(plain, mesh, "fsdp", replicate=CASE.whole)
    one = optim.AdamW(sharded.parameters(), lr=1e-2)
    step(sharded, one, batch)
    one.param_groups[0]["lr"] = 5e-3
    monarch_nb.save(tmp_path / "run", sharded, one)
    other = monarch_nb.parallelize(CASE.make(), own_mesh, "ddp", replicate=CASE.whole)
    two = optim.AdamW(other.parameters(), lr=1e-2)
    assert monarch_nb.restore(tmp_path / "run", other, two) == {}
    assert two.param_groups[0]["lr"] == 5e-3
    for ours, theirs in zip(other.state_dict().values(), sharded.state_dict().values(), strict=True):
        assert torch.equal(ours.full(), theirs.full())
    for _ in range(2):
        assert step(other, two, batch) == pytest.approx(step(sharded, one, batch), abs=1e-6)


def test_what_cant_be_restored(mesh: Mesh, tmp_path: Path) -> None:
    model = monarch_nb.parallelize(nn.Linear(3, 2), mesh)
    with pytest.raises(RemoteException, match=r"restoring failed on ranks 0-3: .*no checkpoint at .*nothing"):
        monarch_nb.restore(tmp_path / "nothing", model)
    monarch_nb.save(tmp_path / "run", model)
    with pytest.raises(MeshUsageError, match=r"saved without an optimiser: restore\(path, model\)"):
        monarch_nb.restore(tmp_path / "run", model, optim.SGD(model.parameters(), lr=0.1))
    larger = monarch_nb.parallelize(nn.Linear(4, 2), mesh)
    with pytest.raises(DeviceMeshError, match=r"(?i)size"):
        monarch_nb.restore(tmp_path / "run", larger)
    with pytest.raises(MeshUsageError, match=r"a module that monarch_nb\.parallelize"):
        monarch_nb.save(tmp_path / "run", nn.Linear(3, 2))
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteException, match=r"saving failed on rank 0 of 4: NotADirectoryError"):
        monarch_nb.save(tmp_path / "file" / "run", model)
    assert torch.isfinite(model(torch.ones(4, 3)).full()).all()


def shared(words: str, ranks: Mesh) -> tuple[nn.Module, Any]:
    """Return a perceptron on a mesh, the way that `words` say, and its optimiser."""
    plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    plan = {"tp_plan": {"0": "colwise", "2": "rowwise"}} if "tp" in words else {}
    model = monarch_nb.parallelize(plain, ranks, words, **plan)
    return model, optim.AdamW(model.parameters(), lr=1e-2)


def test_layers_that_ranks_share_are_read_by_others(mesh: Mesh, own_mesh: Mesh, tmp_path: Path) -> None:
    batch = CASES["mlp"].batch()
    one = shared("fsdp+tp", mesh)
    for _ in range(2):
        step(*one, batch)
    monarch_nb.save(tmp_path / "run", *one, step=2)
    before = [each.full() for each in one[0].state_dict().values()]
    wanted = [step(*one, batch) for _ in range(3)]
    for words, ranks in (("fsdp", mesh), ("ddp+tp", mesh), ("tp", own_mesh), ("ddp", own_mesh)):
        other = shared(words, ranks)
        assert monarch_nb.restore(tmp_path / "run", *other) == {"step": 2}
        after = [each.full() for each in other[0].state_dict().values()]
        assert all(map(torch.equal, before, after)), words
        assert [step(*other, batch) for _ in range(3)] == pytest.approx(wanted, abs=1e-6), words
    monarch_nb.save(tmp_path / "other", *other)
    monarch_nb.restore(tmp_path / "other", *one)
    assert step(*one, batch) == pytest.approx(step(*other, batch), abs=1e-6)


def test_a_rank_that_shares_layers_dies(own_mesh: Mesh, tmp_path: Path) -> None:
    batch = CASES["mlp"].batch()
    model, optimizer = shared("tp", own_mesh)
    step(model, optimizer, batch)
    monarch_nb.save(tmp_path / "run", model, optimizer)
    wanted = step(model, optimizer, batch)
    pids = list(own_mesh.procs.execute(os.getpid).get(60).values())
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(DeviceMeshError):
        deque(iter(lambda: step(model, optimizer, batch), None), maxlen=0)
    monarch_nb.heal_mesh(own_mesh)
    monarch_nb.restore(tmp_path / "run", model, optimizer)
    assert model[0].weight.placements[0].is_shard()
    assert step(model, optimizer, batch) == pytest.approx(wanted, abs=1e-6)


def test_a_module_that_all_ranks_have_goes_on_without_a_checkpoint(own_mesh: Mesh) -> None:
    """The loss happens between two steps; the new rank is given what the other one has."""
    case = CASES["mlp"]
    plain = case.make()
    model = monarch_nb.parallelize(copy.deepcopy(plain), own_mesh, strategy="ddp")
    ours, theirs = (optim.AdamW(each.parameters(), lr=1e-2) for each in (model, plain))
    batches = [case.batch() for _ in range(4)]
    for number, batch in enumerate(batches):
        if number == 2:
            os.kill(list(own_mesh.procs.execute(os.getpid).get(60).values())[1], signal.SIGKILL)
            wait_until(lambda: not own_mesh.healthy(), "a rank that is lost")
            with pytest.raises(DeviceMeshError):
                model(batch[0]).sum().item()
            monarch_nb.heal_mesh(own_mesh)
        assert step(model, ours, batch) == pytest.approx(step(plain, theirs, batch), abs=1e-6)
