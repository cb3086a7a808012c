"""Batches of all kinds of sources arrive on the ranks as tensors of the mesh, not too far ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError
from tests.waiting import wait_until

X = torch.arange(24.0, dtype=torch.float64)
AXIS = "data_parallel"


def relation() -> Any:
    return duckdb.sql("select range::double as x from range(24) order by range")


SOURCES: dict[str, Callable[[], tuple[Any, int | None]]] = {
    "tensor": lambda: (X, 8),
    "numpy": lambda: (X.numpy(), 8),
    "arrow": lambda: (pyarrow.table({"x": X.numpy()}), 8),
    "polars": lambda: (polars.DataFrame({"x": X.numpy()}), 8),
    "duckdb": lambda: (relation(), 8),
    "record batches": lambda: (pyarrow.table({"x": X.numpy()}).to_batches(max_chunksize=8), None),
    "generator": lambda: ((each.numpy() for each in X.split(8)), None),
    "loader": lambda: (DataLoader(TensorDataset(X), batch_size=8), None),
}


def only(batch: Any) -> Any:
    return batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, (list, tuple)) else batch


@pytest.mark.parametrize("name", SOURCES)
def test_batches_of_a_source_arrive_sharded(mesh: Mesh, name: str) -> None:
    source, rows = SOURCES[name]()
    found = [only(each) for each in monarch_nb.feed(source, mesh, [AXIS], batch_size=rows)]
    assert [each.shape[0] for each in found] == [8, 8, 8]
    assert all(each.placements[0].is_shard(0) and each.placements[1].is_replicate() for each in found)
    assert torch.equal(torch.cat([each.full() for each in found]), X)


def is_mapped(value: Any) -> bool:
    """On a rank: say whether a tensor lies in memory of the message it came in."""
    at = value.to_local().data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= at < end:
            return "memfd" in line
    return False


def test_ranks_map_a_batch_and_change_only_their_own(mesh: Mesh) -> None:
    large = torch.arange(1 << 20, dtype=torch.float32).view(1024, 1024)
    batch = next(iter(monarch_nb.feed([large.clone()], mesh)))
    assert mesh.execute(is_mapped, batch) is True
    assert mesh.execute(is_mapped, monarch_nb.distribute(large, mesh, [AXIS])) is False
    other = next(iter(monarch_nb.feed([large], mesh, [])))
    batch.add_(1)
    assert torch.equal(batch.full(), large + 1) and torch.equal(other.full(), large)


def test_lists_of_equal_length_are_rows(mesh: Mesh) -> None:
    rows = pyarrow.array([[1.0, 2.0], [3.0, 4.0]], pyarrow.list_(pyarrow.float64(), 2))
    table = pyarrow.table({"x": rows, "y": [1, 2]})
    spec = {"x": [AXIS, "model_parallel"], "y": [None]}
    (batch,) = monarch_nb.feed(table, mesh, spec, batch_size=2)
    assert batch["x"].full().tolist() == [[1.0, 2.0], [3.0, 4.0]] and batch["y"].tolist() == [1, 2]
    assert all(each.is_shard() for each in batch["x"].placements)


def test_the_loop_of_one_process(mesh: Mesh) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 6), torch.randn(24, 3))
    plain = nn.Linear(6, 3)
    model = monarch_nb.parallelize(plain, mesh, "fsdp")
    losses: list[list[float]] = []
    for each, batches in (
        (plain, DataLoader(data, batch_size=8)),
        (model, monarch_nb.feed(DataLoader(data, batch_size=8), model)),
    ):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        losses.append([])
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(each(x), y)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], abs=1e-6) and len(losses[1]) == 3


def block(folder: str) -> None:
    """On a rank: say that it's here, and wait until somebody opens the pipe."""
    (Path(folder) / f"here-{os.getpid()}").touch()
    with open(Path(folder) / "pipe", "rb"):
        pass


def test_the_source_is_read_no_further_than_ranks_follow(own_mesh: Mesh, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    num_read = 0

    def source() -> Iterator[torch.Tensor]:
        nonlocal num_read
        for n in range(40):
            num_read += 1
            yield torch.full((4,), float(n))

    found: list[float] = []
    batches = monarch_nb.feed(source(), own_mesh, prefetch=1)
    blocked = threading.Thread(target=own_mesh.execute, args=(block, str(tmp_path)))
    reader = threading.Thread(target=lambda: found.extend(each.sum() for each in batches))
    blocked.start()
    wait_until(lambda: len(list(tmp_path.glob("here-*"))) == 2, "ranks in the function")
    reader.start()
    wait_until(
        lambda: num_read == 3, "three batches"
    )  # two were handed out, the ranks have done with none, one waits
    with open(tmp_path / "pipe", "wb"):
        seen = num_read
        blocked.join(60)
    reader.join(60)
    assert seen == 3
    assert [each.item() for each in found] == [4.0 * n for n in range(40)]


def test_what_the_source_raises_comes_after_its_batches(mesh: Mesh) -> None:
    def source() -> Iterator[torch.Tensor]:
        yield torch.ones(4)
        raise OSError("the disk is gone")

    batches = monarch_nb.feed(source(), mesh, prefetch=3)
    assert next(batches).sum().item() == 4.0
    with pytest.raises(OSError, match="the disk is gone") as caught:
        next(batches)
    assert caught.value.__notes__ == ["in batch 1 (from 0) of the generator given to monarch_nb.feed"]


def test_what_is_typed_wrongly(mesh: Mesh) -> None:
    nulls = polars.DataFrame({"x": [1, None]})
    for source, words, output in (
        (X, {}, r"feed cuts a torch.Tensor into batches.*batch_size=64"),
        ([X], {"batch_size": 2}, "batches of a list come as they are"),
        (3, {}, "feed takes a tensor.*not a int"),
        ("data.parquet", {}, "feed takes a tensor.*not a str"),
        ([X], {"prefetch": -1}, "prefetch is a whole number, at least 0; not -1"),
        (X, {"batch_size": 0}, "batch_size is a whole number, at least 1; not 0"),
        ([X], {"placements": ["rows"]}, "rows"),
        ([{"x": X}], {"placements": {"y": [None]}}, "placements has no 'x', only 'y'"),
        (nulls, {"batch_size": 2}, "column 'x' has 1 nulls.*fill_null"),
        (polars.DataFrame({"s": ["a"]}), {"batch_size": 1}, "column 's' is of large_string|'s' is of string"),
    ):
        with pytest.raises(MeshUsageError, match=output):
            list(monarch_nb.feed(source, mesh, **words))
