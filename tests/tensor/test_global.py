"""One tensor over the mesh: what comes out is what one process would compute, however it's laid out."""

from __future__ import annotations

import copy
import io
import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshUsageError, WrongTensor

AXES = ("data_parallel", "model_parallel")
SPECS = [[], ["data_parallel", None], [None, "model_parallel"], [*AXES], [AXES, None], [None, AXES]]


def close(found: Any, wanted: torch.Tensor) -> bool:
    return torch.allclose(found.full() if isinstance(found, monarch_nb.Tensor) else found, wanted, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_is_distributed_comes_back(mesh: Mesh, spec: list[Any]) -> None:
    plain = torch.randn(8, 6)
    dt = monarch_nb.distribute(plain, mesh, sharding_spec=spec)
    assert dt.shape == (8, 6) and dt.dtype == torch.float32
    assert [*dt.sharding_spec] == [*spec, *[None] * (2 - len(spec))]
    assert torch.equal(dt.full(), plain)


def test_each_rank_has_its_part(mesh: Mesh) -> None:
    plain = torch.arange(8.0).reshape(4, 2)
    dt = monarch_nb.distribute(plain, mesh, ["data_parallel", "model_parallel"])
    for d, m in itertools.product(range(2), repeat=2):
        assert torch.equal(
            monarch_nb.inspect(dt, data_parallel=d, model_parallel=m), plain[2 * d : 2 * d + 2, m : m + 1]
        )
    assert torch.equal(monarch_nb.inspect(dt, rank=3), plain[2:, 1:])
    assert "data_parallel=1, model_parallel=0: [[4.]" in monarch_nb.show(dt).replace("\n", "")


def test_dimensions_that_dont_divide(mesh: Mesh) -> None:
    plain = torch.randn(5, 3)
    dt = monarch_nb.distribute(plain, mesh, ["data_parallel", "model_parallel"])
    assert torch.equal(dt.full(), plain)
    assert close(dt.sum(0), plain.sum(0)) and close(dt @ dt.T, plain @ plain.T)


OPERATIONS = {
    "matmul": lambda x: x @ x.T,
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(1),
    "softmax": lambda x: x.softmax(-1),
    "slice": lambda x: x[1:5, 2],
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "view": lambda x: x.reshape(4, 12).transpose(0, 1),
    "in place": lambda x: x.clone().add_(1).mul_(x),
    "cumsum": lambda x: x.cumsum(0),
    "topk": lambda x: x.topk(3, dim=0).values,
    "sort": lambda x: x.sort(dim=0, stable=True).indices,
    "argmax": lambda x: x.argmax(0),
    "where": lambda x: torch.where(x > 0, x, -x),
    "norm": lambda x: x.norm(),
    "split": lambda x: torch.stack(x.split(2, 0)).sum(0),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "index": lambda x: x[torch.tensor([0, 3, 1])],
    "scatter": lambda x: torch.zeros_like(x).scatter_(0, torch.zeros(1, 6, dtype=torch.long), 1.0),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + 8 * torch.eye(8)),
    "nonzero": lambda x: (x > 0).nonzero(),
    "mask": lambda x: x[x > 0],
    "unique": lambda x: x.round().unique(),
    "type": lambda x: x.to(torch.float64).float(),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (6,)),
}


@pytest.mark.parametrize("spec", [["data_parallel", None], [None, "model_parallel"], [*AXES]], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_one_process(mesh: Mesh, name: str, spec: list[Any]) -> None:
    torch.manual_seed(0)
    plain = torch.randn(8, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that something is gathered is said once
        found = OPERATIONS[name](monarch_nb.distribute(plain, mesh, spec))
    wanted = OPERATIONS[name](plain)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert close(found, wanted)


def test_a_partner_may_be_plain(mesh: Mesh) -> None:
    plain = torch.randn(8, 6)
    dt = monarch_nb.distribute(plain, mesh, ["data_parallel", None])
    assert (dt + plain).sharding_spec == ["data_parallel", None]
    assert close(plain * dt + torch.tensor(2.0), plain * plain + 2)
    assert close(dt @ torch.ones(6, 2), plain @ torch.ones(6, 2))


def test_a_plain_partner_that_changes_is_sent_again(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.zeros(4), mesh)
    plain = torch.ones(4)
    first = dt + plain
    plain.mul_(5)
    assert (first.tolist(), (dt + plain).tolist()) == ([1.0] * 4, [5.0] * 4)


def test_numbers_come_here(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.tensor([3.0, 4.0]), mesh, ["data_parallel"])
    loss = dt.norm()
    assert (loss.item(), float(loss), f"{loss:.2f}", bool(loss > 4)) == (5.0, 5.0, "5.00", True)
    assert dt.tolist() == [3.0, 4.0] and dt.numpy().tolist() == [3.0, 4.0] and type(dt.cpu()) is torch.Tensor
    assert int(dt.argmax()) == 1 and torch.equal(dt, dt.clone())


def test_it_shows_its_layout_and_numbers(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.tensor([[1.0, 2.0]]), mesh, [None, "model_parallel"])
    assert repr(dt) == "Tensor([[1., 2.]], shape=[1, 2], torch.float32, dim 1 over model_parallel)"


def test_what_cant_be_done_on_shards_is_said_once_and_is_right(mesh: Mesh) -> None:
    plain, first, values = torch.randn(4, 4), torch.tensor([0, 9]), torch.tensor([1.0, 2.0])
    dt = monarch_nb.distribute(plain, mesh, ["data_parallel"])
    with pytest.warns(
        UserWarning, match=r"aten\.put\.default can't be done on shards .*every rank gathers its inputs"
    ):
        found = dt.put(first, values)
    assert close(found, plain.put(first, values))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(dt.put(first, -values), plain.put(first, -values))
        whole = monarch_nb.distribute(plain.clone(), mesh)
        whole[0] = 5  # each rank has all of it: nothing is gathered
    assert whole.full()[0].tolist() == [5.0] * 4


def test_layouts_change_and_gradients_with_them(mesh: Mesh) -> None:
    plain = torch.randn(4, 6)
    leaf = monarch_nb.distribute(plain, mesh, ["data_parallel"]).requires_grad_()
    moved = monarch_nb.redistribute(leaf, [None, "model_parallel"])
    assert moved.sharding_spec == [None, "model_parallel"]
    (moved * moved).sum().backward()
    assert leaf.grad is not None and leaf.grad.sharding_spec == ["data_parallel", None]
    assert close(leaf.grad, 2 * plain)


def test_random_numbers_dont_depend_on_the_layout(mesh: Mesh) -> None:
    drawn = []
    for spec in ([], ["data_parallel"], [None, "model_parallel"]):
        torch.manual_seed(3)
        ones = monarch_nb.distribute(torch.ones(8, 6), mesh, spec)
        drawn.append((torch.nn.functional.dropout(ones, 0.5).full(), torch.rand_like(ones).full()))
    assert all(torch.equal(a, drawn[0][0]) and torch.equal(b, drawn[0][1]) for a, b in drawn)
    assert 0 < drawn[0][0].count_nonzero() < 48 and drawn[0][1].unique().numel() > 40


def test_copies_and_files(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.ones(4, 2), mesh, ["data_parallel"])
    other = copy.deepcopy(dt)
    other.add_(1)
    assert dt.sum().item() == 8 and other.sum().item() == 16
    file = io.BytesIO()
    torch.save({"dt": dt}, file)
    file.seek(0)
    loaded = torch.load(file)["dt"]
    assert type(loaded) is torch.Tensor and torch.equal(loaded, torch.ones(4, 2))


def test_slots_are_given_back(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.ones(4), mesh)
    dt = dt + 1
    live = dt.engine.slots.num_live
    for _ in range(500):
        dt = (dt * 2) / 2
    assert dt.engine.slots.num_live == live and dt.tolist() == [2.0] * 4


def test_a_second_time_nothing_is_propagated(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.ones(4), mesh, ["data_parallel"])
    torch.add(dt, dt, alpha=0.25)
    before = dt.engine.num_misses
    halves = torch.add(dt, dt, alpha=0.5)
    assert dt.engine.num_misses == before and halves.tolist() == [1.5] * 4


def test_values_of_each_rank(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.arange(4.0), mesh, ["data_parallel"])
    own = monarch_nb.per_rank(dt)
    assert own.shape == (2,) and own.sharding_spec == [None]
    again = monarch_nb.as_global(own * 2, ["data_parallel"])
    assert again.tolist() == [0.0, 2.0, 4.0, 6.0]
    with pytest.raises(
        WrongTensor,
        match=r"each of 4 ranks has a value of its own here: which one\? monarch_nb.inspect\(x, rank=0\)",
    ):
        own.tolist()
    with pytest.raises(WrongTensor, match=r"make them alike with monarch_nb\.as_global"):
        own + dt
    with pytest.raises(WrongTensor, match="LOCAL_TENSOR"):
        own + torch.ones(2)


BAD = {
    "an unknown axis": (
        lambda m, t: monarch_nb.distribute(t, m, ["data"]),
        (
            "the mesh has no axis 'data': its axes are 'data_parallel' (2), 'model_parallel' (2); write "
            "sharding_spec=['data_parallel', None]"
        ),
    ),
    "a spec that is longer than the tensor": (
        lambda m, t: monarch_nb.distribute(t, m, [None, None, "data_parallel"]),
        (
            "has 3 entries for a tensor with 2 dimensions; give at most one for each, as in "
            "['data_parallel', None]"
        ),
    ),
    "an axis twice": (
        lambda m, t: monarch_nb.distribute(t, m, ["data_parallel", "data_parallel"]),
        "names axis 'data_parallel' twice",
    ),
    "a spec that is a word": (
        lambda m, t: monarch_nb.distribute(t, m, "data_parallel"),
        "sharding_spec is a list with an axis or None for each dimension",
    ),
    "a spec of numbers": (
        lambda m, t: monarch_nb.distribute(t, m, [0]),
        "an entry of sharding_spec is an axis, a tuple of axes, or None",
    ),
    "a spec for a number": (
        lambda m, t: monarch_nb.distribute(torch.tensor(1.0), m, ["data_parallel"]),
        "for a tensor with no dimensions (a single number)",
    ),
    "no tensor": (
        lambda m, t: monarch_nb.distribute([1.0], m),
        "distribute takes a tensor, not list: torch.as_tensor(x) makes one",
    ),
    "a tensor without numbers": (lambda m, t: monarch_nb.distribute(t.to("meta"), m), "not a meta one"),
    "no mesh": (
        lambda m, t: monarch_nb.distribute(t, "mesh"),
        "expected a mesh, not str: monarch_nb.distributed.Mesh(shape=(2,)",
    ),
    "a plain tensor that would be changed": (
        lambda m, t: t.add_(monarch_nb.distribute(t, m)),
        "LOCAL_TENSOR: aten.add_.Tensor would change a plain tensor of this process",
    ),
    "plain data": (
        lambda m, t: setattr(monarch_nb.distribute(t, m), "data", t),
        "LOCAL_TENSOR: .data of a tensor of the mesh",
    ),
    "a rank that isn't there": (
        lambda m, t: monarch_nb.inspect(monarch_nb.distribute(t, m), rank=4),
        "rank=4: a rank from 0 to 3 is wanted",
    ),
    "a shape of zero": (
        lambda m, t: Mesh((0, 2)),
        "shape is the size of each axis, each at least 1, as in (4, 2); not (0, 2)",
    ),
    "names that don't fit": (
        lambda m, t: Mesh((2, 2), ("a",)),
        "mesh_dim_names has a different name for each of 2 axes",
    ),
    "another number of ranks": (
        lambda m, t: Mesh((4, 2), procs=m.procs),
        "a mesh of shape (4, 2) needs 8 ranks;",
    ),
    "no such axis": (
        lambda m, t: m.size("x"),
        "the mesh has no axis 'x': its axes are 'data_parallel', 'model_parallel'",
    ),
    "a new size in place": (
        lambda m, t: monarch_nb.distribute(t, m).resize_(3),
        "resize_ would change the size of a tensor of the mesh in place, which can't be done: make a new",
    ),
    "uneven parts": (
        lambda m, t: monarch_nb.per_rank(monarch_nb.distribute(torch.ones(3), m, ["data_parallel"])),
        "3 rows over 2 ranks aren't equal parts",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_a_sentence(mesh: Mesh, what: str) -> None:
    do, wanted = BAD[what]
    with pytest.raises((MeshUsageError, WrongTensor), match=re.escape(wanted)):
        do(mesh, torch.ones(4, 2))


@pytest.mark.parametrize(
    "dtype", [torch.int16, torch.uint16, torch.float8_e4m3fn, torch.float16, torch.complex64]
)
@pytest.mark.parametrize(
    "spec", [["data_parallel"], [("data_parallel", "model_parallel")], [None, "model_parallel"]]
)
def test_numbers_of_any_type_come_back(mesh: Mesh, dtype: torch.dtype, spec: list[Any]) -> None:
    """Some of them no collective takes."""
    wanted = torch.arange(15).reshape(5, 3).to(dtype)
    found = monarch_nb.distribute(wanted, mesh, spec).full()
    assert found.dtype is dtype and found.shape == wanted.shape
    assert torch.equal(found.contiguous().view(torch.uint8), wanted.view(torch.uint8))


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "squeeze_": lambda x: x.squeeze_(),
    "squeeze_.dim": lambda x: x.squeeze_(1),
    "squeeze_.dims": lambda x: x.squeeze_((1, 3)),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "transpose_": lambda x: x.transpose_(0, 2),
    "swapaxes_": lambda x: x.swapaxes_(0, -2),
    "t_": lambda x: x.squeeze_().t_(),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("spec", [[], ["data_parallel"]])
def test_a_shape_changes_in_place(mesh: Mesh, name: str, spec: list[Any]) -> None:
    wanted = torch.arange(12.0).reshape(4, 1, 3, 1)
    found = monarch_nb.distribute(wanted, mesh, spec)
    wanted = wanted.clone()
    assert IN_PLACE[name](found) is found
    IN_PLACE[name](wanted)
    assert found.shape == wanted.shape and found.stride() == wanted.stride()
    assert torch.equal(found.full(), wanted)
    assert torch.equal((found * 2).full(), wanted * 2)
    found.add_(1)
    assert torch.equal(found.full(), wanted + 1)


def test_a_view_made_in_place_shares_memory_and_has_a_gradient(mesh: Mesh) -> None:
    base = monarch_nb.distribute(torch.ones(3, 1), mesh)
    view = base.detach()
    view.squeeze_(1).add_(1)
    assert view.shape == (3,) and base.shape == (3, 1)
    assert base.full().tolist() == [[2.0], [2.0], [2.0]]
    leaf = monarch_nb.distribute(torch.ones(3, 1), mesh).requires_grad_()
    (leaf * 2).squeeze_(1).sum().backward()
    assert leaf.grad is not None and leaf.grad.full().tolist() == [[2.0]] * 3


def test_shapes_that_dont_fit_raise_at_the_line(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.ones(4, 2), mesh, ["data_parallel"])
    with pytest.raises(
        RuntimeError,
        match=r"a and b must have same reduction dim|mat1 and mat2 shapes cannot be multiplied|shapes",
    ):
        dt @ dt


def test_writing_into_a_view_that_is_a_copy_is_refused(mesh: Mesh) -> None:
    dt = monarch_nb.distribute(torch.arange(8.0).reshape(4, 2), mesh, ["data_parallel"])
    part = dt[1:3]
    assert part.mesh_meta.is_copy
    for write in (
        lambda: part.add_(1), lambda: part[0].add_(1), lambda: part.t().detach().zero_(),
        lambda: part[0].__setitem__(0, 5.0),
    ):  # fmt: skip
        with pytest.raises(WrongTensor, match="would write into a view of a sharded tensor"):
            write()
    assert part[0].clone().add_(1).tolist() == [3.0, 4.0]
    assert dt.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    whole = monarch_nb.distribute(torch.arange(8.0).reshape(4, 2), mesh)
    whole[1:3].add_(1)
    assert whole.tolist() == [[0.0, 1.0], [3.0, 4.0], [5.0, 6.0], [6.0, 7.0]]


def test_ranks_are_told_how_inputs_are_laid_out_anew(mesh: Mesh) -> None:
    """They don't choose for themselves: what torch chooses depends on what its process has done before."""
    plain = torch.arange(48).reshape(6, 8)
    strided = monarch_nb.distribute(plain, mesh, [None, "data_parallel"]).reshape(-1)
    whole = monarch_nb.distribute(torch.arange(48), mesh)
    rows = monarch_nb.distribute(plain, mesh, ["data_parallel"])
    columns = monarch_nb.distribute(plain, mesh, [None, "data_parallel"])
    for found, expected in (
        (strided + whole, plain.reshape(-1) + torch.arange(48)), (rows + columns, 2 * plain),
        (torch.where(rows > 3, rows, columns.neg()), torch.where(plain > 3, plain, -plain)),
    ):  # fmt: skip
        assert torch.equal(found.full(), expected)
        moved = [each.moved for each in found.engine.definitions if each.moved]
        assert moved and all(type(each) in (Shard, Replicate) for _, layout in moved[-1] for each in layout)


def test_meshes_dont_mix(mesh: Mesh, own_mesh: Mesh) -> None:
    mine, other = monarch_nb.distribute(torch.ones(2), mesh), monarch_nb.distribute(torch.ones(2), own_mesh)
    with pytest.raises(
        WrongTensor,
        match=r"WRONG_MESH: aten.add.Tensor on tensors of different meshes; move one of them: "
        r"monarch_nb.distribute",
    ):
        mine + other


def test_a_detached_tensor_outlives_the_drop_of_the_other(mesh: Mesh) -> None:
    x = monarch_nb.distribute(torch.arange(4.0), mesh)
    detached = x.detach()
    x.drop()
    assert x.dropped and not detached.dropped
    assert detached.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(WrongTensor, match="DROPPED"):
        x.tolist()
