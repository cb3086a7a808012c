"""What Monarch's tensor engine does: values of each rank's own, brought from rank to rank, to other meshes
and here; streams and borrows; functions on the ranks. Error words are the ones that its users look for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import remote_functions
import torch

import monarch_nb
from monarch_nb.actor import ProcMesh, this_host
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError, WrongTensor

T = 60


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    found = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    found.initialized.get(T)
    yield found
    found.stop().get(T)


@pytest.fixture(scope="module")
def x(procs: ProcMesh) -> Any:
    """On the rank at hosts=h, gpus=g: 10 h + g."""
    return 10 * procs.rank_tensor("hosts") + procs.rank_tensor("gpus")


def by_rank(tensor: Any) -> list[Any]:
    """What each rank has, as lists."""
    grid = tensor.mesh
    return [monarch_nb.inspect(tensor, rank=n).tolist() for n in range(len(grid.ranks))]


# --- making


def test_torchs_functions_make_tensors_of_the_active_mesh(procs: ProcMesh) -> None:
    with procs.activate():
        assert monarch_nb.get_active_mesh() is procs
        made = [torch.rand(3, 4), torch.zeros(2, dtype=torch.long), torch.tensor([1.0, 2.0]), torch.arange(3)]
        learns = torch.ones(2, requires_grad=True)
        layer = torch.nn.Linear(2, 3)
        assert type(torch.empty(2, device="meta")) is torch.Tensor
        with monarch_nb.no_mesh.activate():
            assert type(torch.rand(2)) is torch.Tensor
    assert all(isinstance(each, monarch_nb.Tensor) and not each.is_global for each in [*made, learns])
    assert [tuple(each.shape) for each in made] == [(3, 4), (2,), (2,), (3,)]
    assert by_rank(made[2]) == [[1.0, 2.0]] * 4 and by_rank(made[3]) == [[0, 1, 2]] * 4
    assert layer(made[2]).shape == (3,) and learns.requires_grad
    (learns * made[2]).sum().backward()
    assert by_rank(learns.grad) == [[1.0, 2.0]] * 4
    assert type(torch.rand(3)) is torch.Tensor and monarch_nb.get_active_mesh() is None


def test_calls_and_optimizers_go_on_where_a_mesh_is_active(procs: ProcMesh) -> None:
    mine = torch.arange(3.0)
    with procs.activate():
        sums = procs.execute(lambda a: a + torch.ones(3), mine).get(T)
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.AdamW([weight], lr=0.5, weight_decay=0.0)
        weight.sum().backward()
        optimizer.step()
    assert [type(v) for v in sums.values()] == [torch.Tensor] * 4
    assert by_rank(weight)[3] == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_mesh_with_names_of_its_own_can_be_active(mesh: monarch_nb.distributed.Mesh) -> None:
    with mesh.activate():
        ones = torch.ones(2)
    assert monarch_nb.inspect(ones.reduce("data_parallel"), model_parallel=1).tolist() == [2.0, 2.0]


# --- values that come here


def test_fetching(x: Any) -> None:
    assert monarch_nb.fetch_shard(x).get(T).item() == 0
    assert monarch_nb.fetch_shard(x, hosts=1, gpus=1).get(T).item() == 11
    assert monarch_nb.fetch_shard({"a": [x, 2 * x], "b": "c"}, {"gpus": 1}).get(T) == {
        "a": [torch.tensor(1), torch.tensor(2)], "b": "c",
    }  # fmt: skip
    assert monarch_nb.inspect(x, {"hosts": 1}).item() == 10 and by_rank(x) == [0, 1, 10, 11]
    assert "hosts=1, gpus=0: 10" in monarch_nb.show(x)


# --- reductions and moves

REDUCTIONS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "sum of all": (lambda x: x.reduce(), [22] * 4),
    "sum along the last": (lambda x: x.reduce("gpus"), [1, 1, 21, 21]),
    "both by name": (lambda x: x.reduce(("hosts", "gpus"), "max"), [11] * 4),
    "avg": (lambda x: x.float().reduce("hosts", "avg"), [5.0, 6.0] * 2),
    "min": (lambda x: x.reduce("hosts", "min"), [0, 1, 0, 1]),
    "product": (lambda x: (x + 1).reduce("gpus", "product"), [2, 2, 132, 132]),
    "bits": (lambda x: x.reduce("gpus", "bor"), [1, 1, 11, 11]),
    "stack": (lambda x: x.reduce("gpus", "stack"), [[0, 1], [0, 1], [10, 11], [10, 11]]),
    "scatter": (lambda x: torch.stack([x, 2 * x]).reduce("gpus", "sum", scatter=True), [1, 2, 21, 42]),
    "exchange": (
        lambda x: torch.stack([x, 2 * x]).reduce("gpus", "stack", scatter=True),
        [[0, 1], [0, 2], [10, 11], [20, 22]],
    ),
    "in place": (lambda x: monarch_nb.reduce_(x.clone(), "gpus"), [1, 1, 21, 21]),
    "into another": (lambda x: monarch_nb.reduce(x, "gpus", out=torch.zeros_like(x)), [1, 1, 21, 21]),
    "one to all": (lambda x: x.slice_mesh(hosts=1, gpus=1).to_mesh(x.mesh), [11] * 4),
    "one of each row": (lambda x: x.slice_mesh(gpus=0).to_mesh(x.mesh), [0, 0, 10, 10]),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_moves(x: Any, name: str) -> None:
    do, wanted = REDUCTIONS[name]
    assert by_rank(do(x)) == wanted
    assert by_rank(x) == [0, 1, 10, 11]


def test_parts_of_a_mesh_compute_alone(procs: ProcMesh, x: Any) -> None:
    first, last = procs.slice(hosts=0), procs.slice(hosts=1)
    there = x.slice_mesh(hosts=0).to_mesh(last)
    assert by_rank(there) == [0, 1] and by_rank((there * 3).reduce("gpus")) == [3, 3]
    with first.activate():
        made = torch.ones(2)
        assert by_rank(made.to_mesh(last) + there.to_mesh(last)) == [[1.0, 1.0], [2.0, 2.0]]
    assert by_rank(x.reduce("hosts", mesh=last)) == [10, 12]
    with pytest.raises(WrongTensor, match=r"WRONG_MESH: aten\.add\.Tensor on tensors of different meshes"):
        made + there


def test_values_go_to_other_processes(mesh: monarch_nb.distributed.Mesh, x: Any) -> None:
    there = x.slice_mesh(hosts=1, gpus=0).to_mesh(mesh)
    assert by_rank(there + 1) == [11] * 4 and there.engine is not x.engine


# --- functions on the ranks


def all_sum(value: Any, group: Any) -> Any:
    value = value.clone()
    torch.distributed.all_reduce(value, group=group)
    return value


@pytest.mark.parametrize(("dims", "wanted"), [("gpus", [1, 1, 21, 21]), (("hosts", "gpus"), [22] * 4)])
def test_process_groups_are_there_in_functions(procs: ProcMesh, x: Any, dims: Any, wanted: Any) -> None:
    group = procs.process_group(dims)
    assert group.size() == (2 if dims == "gpus" else 4)
    by_shape = monarch_nb.remote(all_sum, propagate=lambda value, group: value.clone())
    assert by_rank(by_shape(x, group)) == by_rank(monarch_nb.remote(all_sum)(x, group)) == wanted


def test_remote_functions(procs: ProcMesh, x: Any) -> None:
    asked = monarch_nb.remote("torch.sub")
    assert by_rank(asked(x, 1)) == [-1, 0, 9, 10]

    @monarch_nb.remote
    def parts(value: Any, times: Any) -> Any:
        return {"twice": value * times, "kind": torch.tensor(type(times).__name__ == "bool")}

    assert [by_rank(parts(x, times)["kind"])[0] for times in (1, True, 1)] == [False, True, False]
    fetched = monarch_nb.call_on_shard_and_fetch(lambda v: (v.item(), "said"), x, shard={"gpus": 1})
    assert fetched.get(T) == (1, "said")
    with procs.activate():
        drawn = monarch_nb.remote(lambda: torch.arange(2))()
    assert by_rank(drawn) == [[0, 1]] * 4
    with pytest.raises(DeviceMeshError, match="ZeroDivisionError"):
        monarch_nb.remote(lambda v: v / (1 // 0))(x)


def test_a_decorated_function_has_the_variables_of_its_module(procs: ProcMesh, x: Any) -> None:
    procs.execute(remote_functions.tell, 3).get(T)
    assert by_rank(remote_functions.times_told(x)) == [0, 3, 30, 33]
    assert remote_functions.told == 0


def test_what_is_known_of_a_function_isnt_asked_again(x: Any) -> None:
    twice = monarch_nb.remote(lambda v: v * 2)
    twice(x)
    x.engine.synchronize()
    messages = x.engine.stream.num_messages
    with monarch_nb.coalescing():
        second = twice(x)
        assert x.engine.stream.num_messages == messages
    assert by_rank(second) == [0, 2, 20, 22]


def test_random_states(procs: ProcMesh) -> None:
    with procs.activate():
        monarch_nb.random.make_deterministic()
        before = monarch_nb.random.get_state()
        monarch_nb.random.set_state(monarch_nb.random.new_state(7))
        alike = by_rank(torch.rand(2))
        monarch_nb.random.set_state(monarch_nb.random.new_state(procs.rank_tensor("gpus")))
        apart = by_rank(torch.rand(2))
        monarch_nb.random.set_state(before)
    assert alike == [torch.rand(2, generator=torch.Generator().manual_seed(7)).tolist()] * 4
    assert apart[0] == apart[2] != apart[1] == apart[3]


# --- streams and borrows


def test_a_borrowed_tensor_can_be_read_by_both(procs: ProcMesh) -> None:
    other = monarch_nb.Stream("other")
    with procs.activate():
        mine = torch.ones(2)
        with other.activate():
            theirs = torch.ones(2)
            assert monarch_nb.get_active_stream() is other
    with pytest.raises(WrongTensor, match="WRONG_STREAM"):
        mine + theirs
    borrowed, borrow = other.borrow(mine)
    assert by_rank(borrowed + theirs) == by_rank(mine + mine) == [[2.0, 2.0]] * 4
    with pytest.raises(WrongTensor, match="BORROWED"):
        mine.add_(1)
    with pytest.raises(WrongTensor, match="MUTATING_BORROW"):
        borrowed.add_(1)
    borrow.drop()
    with pytest.raises(WrongTensor, match="DROPPED"):
        borrowed + theirs
    assert by_rank(mine.add_(1)) == [[2.0, 2.0]] * 4
    with pytest.raises(WrongTensor, match="DROPPED"):
        borrow.drop()


def test_a_tensor_that_is_borrowed_to_be_changed_is_away(procs: ProcMesh) -> None:
    with procs.activate():
        mine = torch.ones(2)
    with monarch_nb.Stream("other").borrow(mine, mutable=True)[1] as borrow:
        borrow.tensor.add_(1)
        uses: list[Callable[[], Any]] = [
            lambda: mine + 1, lambda: monarch_nb.inspect(mine), lambda: mine.reduce("gpus"),
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(WrongTensor, match="BORROWED"):
                use()
        with pytest.raises(WrongTensor, match="BORROWED: this tensor is borrowed already"):
            monarch_nb.Stream("third").borrow(mine)
    assert by_rank(mine + 1) == [[3.0, 3.0]] * 4


def test_dropping_gives_memory_back_at_once(procs: ProcMesh) -> None:
    with procs.activate():
        mine = torch.ones(2)
    live = mine.engine.slots.num_live
    mine.drop()
    assert mine.dropped and mine.engine.slots.num_live == live - 1
    mine.drop()
    with pytest.raises(WrongTensor, match="DROPPED: this tensor was dropped"):
        mine + 1


# --- gradients, messages


def test_gradients_one_at_a_time(procs: ProcMesh) -> None:
    with procs.activate():
        a, b, c = (torch.full((2,), n, requires_grad=True) for n in (2.0, 3.0, 4.0))
    found = list(monarch_nb.grad_generator((a * b).sum(), [b, c, a]))
    assert [None if each is None else by_rank(each)[0] for each in found] == [[2.0, 2.0], None, [3.0, 3.0]]
    with pytest.raises(MeshUsageError, match="one of with_respect_to doesn't"):
        monarch_nb.grad_generator(a.sum(), [torch.ones(1)])


def test_functions_that_say_their_gradient(procs: ProcMesh) -> None:
    @monarch_nb.grad_function
    def straight_through(value: Any) -> Any:
        return value.round(), lambda gradient: 10 * gradient

    with procs.activate():
        a = torch.full((2,), 1.7, requires_grad=True)
    result: Any = straight_through(a)
    result.sum().backward()
    assert by_rank(result)[0] == [2.0, 2.0] and by_rank(a.grad)[1] == [10.0, 10.0]


def test_a_block_is_one_message(procs: ProcMesh, x: Any) -> None:
    stream = x.engine.stream
    x.engine.synchronize()
    before = stream.num_messages
    with monarch_nb.coalescing():
        total = x
        for _ in range(3000):
            total = total + 1
        assert stream.num_messages == before
    assert stream.num_messages == before + 1
    assert by_rank(total) == [3000, 3001, 3010, 3011]


# --- bad input

BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no such axis": (
        lambda x: x.reduce("gpu"),
        "dim gpu not found in the mesh: its axes are 'hosts', 'gpus'",
    ),
    "an axis twice": (lambda x: x.reduce(("gpus", "gpus")), "reducing the same dimension twice"),
    "no such reduction": (lambda x: x.reduce("gpus", "mean"), "reduction mean not supported, reductions are"),
    "a stack of two": (lambda x: x.reduce((), "stack"), "not valid for multiple dimensions"),
    "bits of floats": (
        lambda x: x.float().reduce("gpus", "band"),
        "is of whole numbers, not of torch.float32",
    ),
    "mean of whole numbers": (lambda x: x.reduce("gpus", "avg"), "is of floating point numbers"),
    "scatter of a number": (
        lambda x: x.reduce("gpus", scatter=True),
        "the outer dimension must have the same size as the mesh's: 2",
    ),
    "a stack in place": (lambda x: x.reduce_("gpus", "stack"), "is not valid for in-place operation"),
    "another size": (
        lambda x: x.reduce("gpus", out=torch.stack([x, x])),
        "The given output shape, torch.Size([2]), is incorrect",
    ),
    "a gradient": (
        lambda x: x.float().requires_grad_().reduce("gpus"),
        "REQUIRES_GRAD: reduce('gpus', 'sum') has no gradient: x.detach() first",
    ),
    "a plain tensor": (
        lambda x: monarch_nb.reduce(torch.ones(2), "gpus"),
        "takes a tensor of a mesh, not a plain Tensor",
    ),
    "a point that isn't there": (lambda x: x.slice_mesh(gpus=2), "gpus=2: the axis has positions 0 to 1"),
    "an axis that isn't there": (lambda x: x.slice_mesh(gpu=0), "the mesh has no axis 'gpu'"),
    "an axis that isn't there, there": (
        lambda x: x.to_mesh(x.engine.procs.slice(gpus=0)),
        "destination mesh does not have dimensions {'gpus'}: take one point of it, x.slice_mesh(gpus=0)",
    ),
    "nothing to fetch": (lambda x: monarch_nb.fetch_shard(3), "fetch_shard takes a tensor of a mesh"),
    "no mesh": (
        lambda x: monarch_nb.remote(torch.ones)(2),
        "this requires an active mesh: `with mesh.activate():` around it",
    ),
    "no function": (lambda x: monarch_nb.remote(3), "remote takes a function or where it is"),
    "no such way": (lambda x: monarch_nb.remote(len, propagate="guess"), "not 'guess'"),
    "a result that is no tensor": (lambda x: monarch_nb.remote(len)(torch.stack([x])), "returned 1"),
    "a group of nothing": (lambda x: x.engine.procs.process_group(()), "along one axis or several"),
    "a stream without a name": (lambda x: monarch_nb.Stream(""), "a stream has a name"),
    "a local tensor": (lambda x: x + torch.ones(2), "LOCAL_TENSOR"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_a_sentence(x: Any, what: str) -> None:
    do, wanted = BAD[what]
    with pytest.raises(MeshUsageError, match=re.escape(wanted)):
        do(x)
    assert by_rank(x) == [0, 1, 10, 11]


def test_one_tensor_over_the_mesh_isnt_reduced(mesh: monarch_nb.distributed.Mesh) -> None:
    with pytest.raises(WrongTensor, match=r"this is one tensor over the mesh .*monarch_nb\.per_rank\(x\)"):
        monarch_nb.distribute(torch.ones(2), mesh).reduce("data_parallel")
