"""push, pull and scatter of big arrays to ranks under other host processes go through the data plane: once
to each machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from own_meshes import own_mesh

from monarch_nb.mesh import Mesh
from monarch_nb.rdma.data_plane import data_plane
from monarch_nb.rdma.extract import Placeholder, extract, restore


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with own_mesh("spread", {"gpus": 2}, num_hosts=2) as started:
        yield started


def _weights_of() -> tuple[int, bool]:
    import __main__

    model = __main__.model
    return int(model["layers"][0].view(torch.int32).sum()), model["name"] == "m"


def test_what_is_pushed_is_on_all_ranks(mesh: Mesh) -> None:
    model = {"layers": [torch.randn(1 << 19), numpy.arange(1 << 18)], "name": "m", "small": torch.ones(3)}
    registered = len(data_plane().regions)
    mesh.push({"model": model, "lr": 0.1})
    total = model["layers"][0].view(torch.int32).sum().item()
    assert list(mesh.execute(_weights_of).get().values()) == [(total, True)] * 4
    found = mesh.pull("model")
    for value in found.values():
        assert torch.equal(value["layers"][0], model["layers"][0])
        assert (value["layers"][1] == model["layers"][1]).all()
        assert torch.equal(value["small"], torch.ones(3))
    assert list(mesh.pull("lr").values()) == [0.1] * 4
    assert len(data_plane().regions) == registered  # nothing is kept
    held = mesh.execute(_num_regions).get()
    assert list(held.values()) == [0] * 4


def _num_regions() -> int:
    from monarch_nb.rdma.data_plane import data_plane

    return len(data_plane().regions)


def test_ranks_share_the_memory_of_what_was_pushed_but_not_what_they_write(mesh: Mesh) -> None:
    mesh.push({"w": torch.zeros(1 << 19)})
    mesh.run("w[rank] = 1 + rank")
    for rank, value in enumerate(mesh.pull("w").values()):
        assert value.nonzero().flatten().tolist() == [rank]


def test_some_ranks_only(mesh: Mesh) -> None:
    mesh.push({"part": torch.full((1 << 18,), 7.0)}, "3")
    assert mesh.pull("part", ranks="3").item()[0] == 7
    with pytest.raises(Exception, match="name 'part' is not defined on rank 0"):
        mesh.pull("part", ranks="0,3")


def test_lifting_takes_out_what_is_big() -> None:
    big, small = torch.zeros(1 << 18), torch.zeros(3)
    value: Any = {"a": [big, (small, big)], "b": 3}
    light, arrays = extract(value)
    assert [a is big for a in arrays] == [True, True]
    assert isinstance(light["a"][0], Placeholder)
    assert light["a"][1][0] is small
    assert restore(light, [1, 2]) == {"a": [1, (small, 2)], "b": 3}
