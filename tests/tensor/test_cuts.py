"""What a rank has whole, and needs a part of, is cut where it lies: nothing is sent, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import monarch_nb
from monarch_nb._rank.tensor.cuts import Cut
from monarch_nb._rank.tensor.meshes import OwnMesh
from monarch_nb.distributed import Mesh

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: y - x,
    "where": lambda x, y: torch.where(y > 0, x, y),
    "cat": lambda x, y: torch.cat((x, y), -1),
    "add_": lambda x, y: x.clone().add_(y),
    "lists": lambda x, y: torch._foreach_add([x, y], [y, x])[0],
    "lists in place": lambda x, y: (z := x.clone(), torch._foreach_add_([z], [y]))[0],
    "bmm": lambda x, y: torch.bmm(x.unsqueeze(-1), y.unsqueeze(-2)),
    "loss": lambda x, y: torch.nn.functional.nll_loss(x, y.abs().long().clamp(max=5).amax(1)),
}
SPECS: dict[str, list[Any]] = {
    "rows": ["data_parallel"],
    "rows over both": [("data_parallel", "model_parallel")],
    "rows and columns": ["data_parallel", "model_parallel"],
    "columns": [None, "model_parallel"],
}


@pytest.mark.filterwarnings("ignore:.*can't be done on shards")  # in place, where a rank has no row
@pytest.mark.parametrize("rows", [8, 7, 3, 2])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_those_of_one_process(mesh: Mesh, name: str, spec: str, rows: int) -> None:
    do = OPERATIONS[name]
    compiled = monarch_nb.compile(lambda x, y: do(x, y).detach())
    for n in range(5):  # graphs are made at the fourth
        torch.manual_seed(n)
        x, y = torch.randn(rows, 6), torch.randn(rows, 6)
        wanted = do(x.clone(), y)
        whole = monarch_nb.distribute(y, mesh, [])
        for found in (do(_laid_out(x, mesh, spec), y), compiled(_laid_out(x, mesh, spec), whole)):
            torch.testing.assert_close(found.full(), wanted)


def _laid_out(plain: torch.Tensor, mesh: Mesh, spec: str) -> Any:
    return monarch_nb.distribute(plain.clone(), mesh, SPECS[spec])


def test_the_whole_is_neither_changed_nor_kept(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.ones(8, 2), mesh, ["data_parallel"])
    whole = monarch_nb.distribute(torch.arange(16.0).reshape(8, 2), mesh, [])
    engine = x.engine
    made = x + whole
    cuts = [each for each in engine.definitions if each.op == "aten.add.Tensor" and each.cuts]
    assert cuts and not cuts[-1].moved
    made.add_(100)
    assert torch.equal(whole.full(), torch.arange(16.0).reshape(8, 2))
    whole.mul_(2)
    assert torch.equal((x + whole).full(), torch.arange(16.0).reshape(8, 2) * 2 + 1)
    assert torch.equal(made.full(), torch.arange(16.0).reshape(8, 2) + 101)


def test_what_is_returned_as_a_view_isnt_cut(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.ones(8, 2), mesh, ["data_parallel"])
    whole = monarch_nb.distribute(torch.zeros(8, 2), mesh, [])
    before = {each.plan for each in x.engine.definitions}
    seen = [whole.expand_as(x), whole.view_as(x), *torch.broadcast_tensors(x, whole)]
    whole.add_(1)
    assert torch.equal(seen[0].full(), torch.ones(8, 2))
    assert torch.equal(seen[1].full(), torch.ones(8, 2))
    assert not [each for each in x.engine.definitions if each.plan not in before and each.cuts]


@pytest.mark.parametrize("size", range(7))
def test_parts_together_are_the_whole(size: int) -> None:
    whole = torch.arange(size)
    parts = []
    for rank in range(4):
        ranks = torch.arange(4, dtype=torch.int).view(2, 2)
        mesh = OwnMesh("cpu", ranks, mesh_dim_names=("x", "y"), _init_backend=False, _rank=rank)
        outer = Cut(mesh, [Shard(0), Replicate()], (0,))(whole)
        parts.append(Cut(mesh, [Shard(0), Shard(0)], (0, 1))(whole))
        assert torch.equal(Cut(mesh, [Shard(0), Shard(0)], (1,))(outer), parts[-1])
    assert torch.equal(torch.cat(parts), whole)
