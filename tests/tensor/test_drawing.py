"""What a notebook shows of tensors of the mesh: which part each rank has, and what takes memory."""

from __future__ import annotations

import re

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

import monarch_nb
from monarch_nb._tensor.drawing import parts, rows
from monarch_nb._tensor.live import biggest
from monarch_nb._tensor.metadata import Grid, contiguous, intern
from monarch_nb.distributed import Mesh

LAYOUTS = {
    "rows": ((Shard(0), Replicate()), ["[0:3, :]"] * 2 + ["[3:5, :]"] * 2),
    "both": ((Shard(0), Shard(1)), ["[0:3, 0:2]", "[0:3, 2:4]", "[3:5, 0:2]", "[3:5, 2:4]"]),
    "one over two axes": ((Shard(0), Shard(0)), ["[0:2, :]", "[2:3, :]", "[3:4, :]", "[4:5, :]"]),
    "a sum": ((Replicate(), Partial()), ["[:, :] to be summed"] * 4),
    "a mean": ((Replicate(), Partial("avg")), ["[:, :] to be averaged"] * 4),
    "a maximum": ((Partial("max"), Partial()), ["[:, :] to be combined by max and summed"] * 4),
    "own values": (None, ["its own [5, 4]"] * 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_which_part_lies_where(name: str) -> None:
    placements, wanted = LAYOUTS[name]
    grid = Grid(object(), (2, 2), ("dp", "tp"), range(4), "cpu")
    meta = intern((5, 4), contiguous((5, 4)), torch.float32, grid, placements)
    assert parts(meta) == wanted
    assert rows(meta)[0] == ["", "tp=0", "tp=1"] and rows(meta)[2] == ["dp=1", *wanted[2:]]


def test_drawn_parts_are_those_of_the_ranks(mesh: Mesh) -> None:
    plain = torch.arange(15.0).reshape(5, 3)
    for spec in (["data_parallel", "model_parallel"], [("data_parallel", "model_parallel")], []):
        dt = monarch_nb.distribute(plain, mesh, spec)
        for rank, part in enumerate(parts(dt.mesh_meta)):
            bounds = [slice(*(int(n) if n else None for n in b.split(":"))) for b in part[1:-1].split(", ")]
            assert torch.equal(monarch_nb.inspect(dt, rank=rank), plain[tuple(bounds)])


def test_a_notebook_shows_the_grid_and_few_numbers(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.tensor([[1.0, 2.0]]), mesh, [None, "model_parallel"])
    shown = dt._repr_html_()
    assert "Tensor([[1., 2.]], shape=[1, 2]" in shown
    assert re.search(r"<th>data_parallel=1</th><td>\[:, 0:1\]</td><td>\[:, 1:2\]</td>", shown)
    large = monarch_nb.distribute(torch.ones(2000), mesh, ["data_parallel"])
    assert "<pre>Tensor(shape=[2000], torch.float32, dim 0 over data_parallel)</pre>" in large._repr_html_()


def test_what_takes_memory_is_listed_by_its_line(mesh: Mesh) -> None:
    kept = [monarch_nb.distribute(torch.ones(1 << 20), mesh) for _ in range(2)]
    head, first, *_ = biggest().splitlines()
    assert head == "tensors of the mesh, by the line that made them:"
    assert re.search(r"8 MiB +2 tensors .*test_drawing\.py, line \d+, in <listcomp>", first), first
    kept.clear()
    assert "<listcomp>" not in biggest()
