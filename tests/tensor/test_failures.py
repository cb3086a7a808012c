"""What goes wrong on ranks is an error in the program, names the operation and the line, and leaves
everything else good.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from torch import nn

import monarch_nb
from monarch_nb._wire.process import wait_until_gone
from monarch_nb.actor import current_rank
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import DeviceMeshError, RemoteException, SupervisionError


def fails_on(ranks: tuple[int, ...], x: torch.Tensor) -> Any:
    if current_rank().rank in ranks:
        raise ValueError("no luck here")
    return x.sum().full_tensor() if hasattr(x, "full_tensor") else x  # type: ignore[operator]


def test_a_function_on_ranks(mesh: Mesh) -> None:
    doubled = mesh.execute(lambda x: x * 2, torch.arange(4.0))
    assert isinstance(doubled, monarch_nb.Tensor) and doubled.tolist() == [0.0, 2.0, 4.0, 6.0]
    dt = monarch_nb.distribute(torch.arange(4.0), mesh, ["data_parallel"])
    assert mesh.execute(lambda x, by: x * by, dt, by=3).sharding_spec == ["data_parallel"]
    assert mesh.execute(lambda: 7) == 7
    assert mesh.execute(lambda: current_rank().rank) == [0, 1, 2, 3]
    total, words = mesh.execute(lambda x: (x.sum(), "sum"), dt)
    assert total.item() == 6.0 and words == "sum"


def test_all_ranks_fail_alike(mesh: Mesh) -> None:
    good = monarch_nb.distribute(torch.ones(2), mesh)
    index = torch.tensor([0, 9])
    bad = good.index_select(0, index)  # only the ranks see the numbers
    worse = (bad + 1).sum()
    with pytest.raises(RemoteException) as caught:
        worse.item()
    text = str(caught.value)
    assert "aten.index_select.default failed on ranks 0-3: " in text and "index out of range" in text
    assert "test_failures.py, line" in text and "bad = good.index_select(0, index)" in text
    assert (good * 2).tolist() == [2.0, 2.0]
    assert caught.value.ranks == (0, 1, 2, 3)
    with pytest.raises(RemoteException):
        bad.tolist()
    assert "lost: aten.index_select.default failed" in repr(bad)


def test_the_layer_is_named(mesh: Mesh) -> None:
    model = monarch_nb.module_to_mesh(nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Embedding(3, 2))), mesh)
    with pytest.raises(RemoteException, match=r"in forward of 1\.0 \(Embedding\)"):
        model[1](torch.tensor([[1], [77]])).sum().item()


@pytest.mark.parametrize("who", [(1,), (0, 2), (0, 1, 2, 3)], ids=str)
def test_some_fail_where_others_wait_for_them(mesh: Mesh, who: tuple[int, ...]) -> None:
    before = monarch_nb.distribute(torch.arange(4.0), mesh, ["data_parallel"])
    began = time.monotonic()
    with pytest.raises(DeviceMeshError, match="ValueError: no luck here") as caught:
        mesh.execute(fails_on, who, before)
    took = time.monotonic() - began
    assert caught.value.ranks == who
    assert "raise ValueError" in str(caught.value)
    assert before.sum().item() == 6.0, "what was made before is good still"
    assert (before @ before).item() == 14.0
    assert took < 20, "nobody waits for a collective's time-out"


def test_one_that_fails_alone_where_nobody_waits(mesh: Mesh) -> None:
    with pytest.raises(RemoteException, match=r"own\.call failed on rank 3 of 4: ValueError"):
        mesh.execute(fails_on, (3,), 1)
    dt = monarch_nb.distribute(torch.arange(4.0), mesh, ["data_parallel"])
    assert dt.sum().item() == 6.0


def test_five_failures_one_after_the_other(mesh: Mesh) -> None:
    for turn in range(5):
        with pytest.raises(DeviceMeshError):
            mesh.execute(fails_on, (turn % 4,), monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"]))
    assert monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"]).sum().item() == 4.0


def test_a_rank_that_dies_and_a_heal(own_mesh: Mesh) -> None:
    mesh = own_mesh
    old = monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"])
    pid = mesh.procs.execute(os.getpid).get(60).values()
    os.kill(list(pid)[1], signal.SIGKILL)
    with pytest.raises(DeviceMeshError):
        old.sum().item()  # a rank that has just been killed doesn't answer any more
    with pytest.raises(
        SupervisionError, match=r"(?s)lost.*monarch_nb\.heal_mesh\(mesh\)|the process was killed by SIGKILL"
    ):
        mesh.execute(lambda x: x * 2, torch.ones(2))
    mesh = monarch_nb.heal_mesh(mesh)
    again = mesh.execute(lambda x: x * 2, torch.ones(2))
    assert again.tolist() == [2.0, 2.0]
    with pytest.raises(
        DeviceMeshError, match="this tensor was lost with rank 1 of its mesh, which was healed since"
    ):
        old + 1
    assert monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"]).sum().item() == 4.0


def test_a_rank_that_dies_and_is_healed_behind_the_engine(own_mesh: Mesh) -> None:
    old = monarch_nb.distribute(torch.ones(4), own_mesh, ["data_parallel"])
    assert old.sum().item() == 4.0
    pids = list(own_mesh.procs.execute(os.getpid).get(60).values())
    os.kill(pids[0], signal.SIGKILL)
    wait_until_gone(pids[0], 30)
    own_mesh.procs.heal()
    with pytest.raises(DeviceMeshError, match=r"a rank was lost, and started anew since|dead"):
        old.sum().item()
    assert monarch_nb.distribute(torch.ones(4), own_mesh, ["data_parallel"]).sum().item() == 4.0
    with pytest.raises(DeviceMeshError, match="lost with rank 0 of its mesh"):
        old + 1


def test_a_mesh_that_was_stopped() -> None:
    mesh = Mesh((1,), ("data_parallel",))
    dt = monarch_nb.distribute(torch.ones(2), mesh)
    assert dt.tolist() == [1.0, 1.0]
    mesh.stop()
    with pytest.raises(DeviceMeshError, match=r"the mesh is dead: it was stopped\. Start another"):
        monarch_nb.distribute(torch.ones(2), mesh)
    with pytest.raises(DeviceMeshError, match=r"stopped|closed|dead"):
        dt.tolist()
