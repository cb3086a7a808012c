"""Operations without a sharding rule of torch: by ours they run on shards, and so do their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

import monarch_nb
from monarch_nb._tensor.propagation import Propagation
from monarch_nb.distributed import Mesh

Loss = Callable[..., torch.Tensor]
OPERATIONS: dict[str, tuple[Loss, list[tuple[int, ...]]]] = {
    "mv": (torch.mv, [(8, 4), (4,)]),
    "addmv": (torch.addmv, [(8,), (8, 4), (4,)]),
    "vdot": (torch.vdot, [(8,), (8,)]),
    "hardswish": (F.hardswish, [(8, 6)]),
    "glu": (lambda x: F.glu(x, 1), [(8, 6)]),
    "prelu": (F.prelu, [(8, 6), (6,)]),
    "masked_fill": (lambda x, value: x.masked_fill(x.detach() > 0, value.sum()), [(8, 6), (1,)]),
    "mean of a loss": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), [(8, 6), (8, 6)]),
    "mean over parts of two sizes": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        [(5, 3), (5, 3)],
    ),
    "sum of a loss": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="sum"),
        [(5, 3), (5, 3)],
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [(4, 8, 2, 2)]),
    "pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), [(4, 2, 5)]),
    "unfold": (lambda x: x.unfold(1, 2, 1), [(4, 5)]),
    "index_add": (lambda x, y: x.index_add(1, torch.tensor([0, 2, 2]), y), [(8, 4), (8, 3)]),
    "std_mean": (lambda x: torch.stack(torch.std_mean(x, 1)), [(8, 6)]),
    "logsigmoid": (F.logsigmoid, [(8, 6)]),
    "addbmm": (torch.addbmm, [(4, 6), (2, 4, 3), (2, 3, 6)]),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), [(8, 6)]),
    "cdist": (torch.cdist, [(8, 4), (6, 4)]),
    "cdist of batches": (torch.cdist, [(2, 8, 4), (2, 6, 4)]),
    "bilinear": (F.bilinear, [(8, 3), (8, 4), (5, 3, 4)]),
    "unsafe_split": (lambda x: torch.stack(torch.unsafe_split(x, 3, 1)), [(8, 6)]),
    "squeeze_copy": (lambda x: torch.squeeze_copy(x, 1), [(8, 1, 6)]),
    "mean of a margin loss": (lambda x: F.multi_margin_loss(x, torch.arange(8) % 5), [(8, 5)]),
    "sum of a margin loss": (
        lambda x: F.multi_margin_loss(x, torch.arange(8) % 5, reduction="sum"),
        [(8, 5)],
    ),
    "a margin loss of labels": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 3, -1, 0]] * 6), reduction="none"),
        [(6, 4)],
    ),
    "norm": (lambda x, y: F.pairwise_distance(x, y), [(8, 6), (8, 6)]),
}
GATHERED_BACKWARD = {"pad", "unfold", "mean of a margin loss"}
"""Their gradients have no rule yet."""


def gradients(loss: Loss, given: list[torch.Tensor]) -> list[torch.Tensor]:
    result = loss(*given)
    (result * result).sum().backward()
    return [result.detach(), *[x.grad for x in given if x.grad is not None]]


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_and_gradients_are_those_of_one_process(mesh: Mesh, name: str) -> None:
    loss, shapes = OPERATIONS[name]
    torch.manual_seed(0)
    here = [torch.randn(shape, requires_grad=True) for shape in shapes]
    there: list[Any] = [monarch_nb.distribute(x, mesh, ["data_parallel"]) for x in here]
    engine = mesh.tensor_grid().engine
    engine._warned_of.clear()
    engine.plans.clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = [each.full() for each in gradients(loss, there)]
    wanted = gradients(loss, here)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-4)
    gathered = [str(w.message).split(" can't")[0] for w in seen if "on shards" in str(w.message)]
    assert all("backward" in each for each in gathered) if name in GATHERED_BACKWARD else not gathered, (
        gathered
    )


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
@pytest.mark.parametrize("dim", [-1, -2, 1])
def test_what_is_added_up_along_a_split_dimension(mesh: Mesh, name: str, dim: int) -> None:
    plain = torch.rand(4, 8)
    for spec in ([None, "model_parallel"], ["data_parallel", None]):
        split = monarch_nb.distribute(plain, mesh, sharding_spec=spec)
        found = getattr(split, name)(dim).full()
        assert torch.allclose(found, getattr(plain, name)(dim)), spec


EXTREMES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": lambda x: x.amax(),
    "amin": lambda x: x.amin(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "columns": lambda x: x.amax(0),
    "rows": lambda x: x.amin(1),
    "norm": lambda x: torch.linalg.vector_norm(x, torch.inf),
    "least norm": lambda x: torch.linalg.vector_norm(x, -torch.inf),
    "norm of gradients": lambda x: torch.nn.utils.get_total_norm([x, x + 1], torch.inf),
    "laid out by columns": lambda x: (
        monarch_nb.distribute(x.amax(0), x.mesh, ["data_parallel"])
        if isinstance(x, monarch_nb.Tensor)
        else x.amax(0)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", EXTREMES)
def test_the_largest_of_numbers_and_nan_is_nan(mesh: Mesh, name: str, dtype: torch.dtype) -> None:
    """Whichever rank has it: a collective that compares loses it."""
    function = EXTREMES[name]
    for row in (None, 0, 3, 4, 7):
        values = torch.arange(40.0, dtype=dtype).reshape(8, 5) - 17
        if row is not None:
            values[row, 1] = torch.nan
        for spec in (
            ["data_parallel"],
            ["model_parallel", "data_parallel"],
            [("data_parallel", "model_parallel")],
        ):
            found = function(monarch_nb.distribute(values, mesh, spec))
            torch.testing.assert_close(found.full(), function(values), equal_nan=True)


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
@pytest.mark.parametrize("spec", [["data_parallel"], [None, "data_parallel"]])
def test_logsumexp(mesh: Mesh, spec: list[Any], dim: Any, keepdim: bool) -> None:
    """Torch's rule forgot `keepdim`, and ranks that gathered parts of other sizes were aborted."""
    values = torch.randn(3, 5)
    found = torch.logsumexp(monarch_nb.distribute(values, mesh, spec), dim, keepdim)
    torch.testing.assert_close(found.full(), torch.logsumexp(values, dim, keepdim))


MASKS = {
    "none": None,
    "of all": (6, 4),
    "of rows": (8, 1, 6, 4),
    "of heads": (1, 2, 6, 4),
    "of each": (8, 2, 6, 4),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.bool])
@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize(
    "spec",
    [
        ["data_parallel"],
        [None, "data_parallel"],
        ["data_parallel", "model_parallel"],
        [None, None, "data_parallel"],
    ],
)
@pytest.mark.parametrize("name", MASKS)
def test_attention_with_a_mask(
    mesh: Mesh, name: str, spec: list[Any], is_plain: bool, kind: torch.dtype
) -> None:
    """DTensor lays out anew what is given by position; the mask has a name."""
    torch.manual_seed(2)
    size = MASKS[name]
    query, key, value = (torch.randn(8, 2, n, 8) for n in (6, 4, 4))
    mask = None if size is None else torch.randn(size)
    if mask is not None and kind == torch.bool:
        mask = mask > -1
    alone = [x.clone().requires_grad_() for x in (query, key, value)]
    wanted = F.scaled_dot_product_attention(*alone, attn_mask=mask)
    wanted.square().sum().backward()
    given = [monarch_nb.distribute(x, mesh, spec).requires_grad_() for x in (query, key, value)]
    if mask is not None and not is_plain:
        mask = monarch_nb.distribute(mask, mesh, spec[: mask.dim()])
    found = F.scaled_dot_product_attention(*given, attn_mask=mask)
    found.square().sum().backward()
    torch.testing.assert_close(found.full(), wanted)
    for one, other in zip(given, alone, strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad.full(), other.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "spec", [["data_parallel"], [("data_parallel", "model_parallel")], [None, "data_parallel"]]
)
@pytest.mark.parametrize(
    ("size", "to"),
    [
        ((8, 4), (2, -1)),
        ((12,), (6, 2)),
        ((12,), (2, 2, 3)),
        ((50, 5), (5, -1)),
        ((6, 5), (3, -1)),
        ((8, 6), (-1,)),
    ],
)
@pytest.mark.parametrize("name", ["view", "reshape", "view_copy"])
def test_views_of_other_sizes(mesh: Mesh, name: str, size: Any, to: Any, spec: list[Any]) -> None:
    """Two rows of eight are no parts of what four ranks have."""
    values = torch.randn(size)
    given = monarch_nb.distribute(values, mesh, spec if len(spec) <= len(size) else [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it gathers, where a part would have a part of a row
        found = torch.view_copy(given, to) if name == "view_copy" else getattr(given, name)(to)
    assert torch.equal(found.full(), values.view(to))


@pytest.mark.parametrize("dims", [(), (1,), ((0, 1),)])
def test_a_part_of_one_row_keeps_its_dimension(mesh: Mesh, dims: Any) -> None:
    values = torch.randn(5, 1, 5, 1)
    given = monarch_nb.distribute(values, mesh, [("data_parallel", "model_parallel")])
    assert torch.equal(torch.squeeze_copy(given, *dims).full(), torch.squeeze_copy(values, *dims))


@pytest.mark.filterwarnings("ignore:.*can't be done on shards")
def test_a_table_whose_rows_are_split_over_two_axes(mesh: Mesh) -> None:
    values, wanted = torch.randn(10, 5), torch.randint(10, (7,))
    table = monarch_nb.distribute(values, mesh, [("data_parallel", "model_parallel")]).requires_grad_()
    alone = values.clone().requires_grad_()
    found, one = F.embedding(wanted, table), F.embedding(wanted, alone)
    (found * 2).sum().backward()
    (one * 2).sum().backward()
    assert table.grad is not None and alone.grad is not None
    torch.testing.assert_close(found.full(), one)
    torch.testing.assert_close(table.grad.full(), alone.grad)


def test_batches_of_factors_and_one_right_side(mesh: Mesh) -> None:
    values = torch.randn(2, 4, 4)
    factors, pivots, _ = torch.linalg.ldl_factor_ex(values @ values.mT)
    right = torch.randn(4, 4)
    given = [monarch_nb.distribute(x, mesh, ["data_parallel"]) for x in (factors, pivots, right)]
    found = torch.linalg.ldl_solve(*given)
    torch.testing.assert_close(
        found.full(), torch.linalg.ldl_solve(factors, pivots, right), rtol=1e-4, atol=1e-4
    )


POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 5)),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "interpolate": lambda x: F.interpolate(x if x.dim() == 4 else x[None], scale_factor=2),
    "group_norm": lambda x: F.group_norm(x, 2),
}


@pytest.mark.filterwarnings("ignore:.*can't be done on shards")
@pytest.mark.parametrize("size", [(4, 8, 8), (4, 8, 8, 8)])
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("name", POOLS)
def test_images_that_are_split_along_any_dimension(
    mesh: Mesh, name: str, dim: int, size: tuple[int, ...]
) -> None:
    """One image has channels where several have their number."""
    if dim >= len(size):
        pytest.skip("one image has three dimensions")
    torch.manual_seed(1)
    values = torch.randn(size)
    alone = values.clone().requires_grad_()
    given = monarch_nb.distribute(values, mesh, [*[None] * dim, "data_parallel"]).requires_grad_()
    found, wanted = POOLS[name](given), POOLS[name](alone)
    weight = torch.arange(wanted.numel()).reshape(wanted.shape) % 7.0
    (found * weight).sum().backward()
    (wanted * weight).sum().backward()
    assert given.grad is not None and alone.grad is not None
    torch.testing.assert_close(found.full(), wanted)
    torch.testing.assert_close(given.grad.full(), alone.grad)


GRADIENTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "amax": (lambda x: x.amax(), (4, 6)),
    "amax of equals": (lambda x: (x * 0).amax(), (4, 6)),
    "amin of columns": (lambda x: x.amin(0), (4, 6)),
    "norm": (lambda x: x.norm(torch.inf), (4, 6)),
    "least norm": (lambda x: torch.linalg.vector_norm(x, -torch.inf), (4, 6)),
    "sum over no list": (lambda x: x.sum(()), (4, 6)),
    "mean over no list": (lambda x: x.square().mean(()), (4, 6)),
    "select": (lambda x: x.select(-1, 2), (4, 6)),
    "select of three": (lambda x: x.select(-2, 1), (4, 6, 2)),
    "narrow": (lambda x: x.narrow(-1, 1, 2), (4, 6)),
    "unfold": (lambda x: x.unfold(-1, 2, 1), (4, 6)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 1], [2, 3]])), (4, 6)),
    "gather columns": (lambda x: x.gather(0, torch.tensor([[0, 1], [2, 3]])), (4, 6)),
    "take_along_dim": (lambda x: x.take_along_dim(torch.tensor([[0, 1, 0, 2, 3, 3]]), 0), (4, 6)),
    "scatter": (lambda x: x.scatter(1, torch.tensor([[0, 1], [2, 3]]), x[:2, :2]), (4, 6)),
    "scatter_add": (lambda x: x.scatter_add(1, torch.tensor([[0, 1], [2, 3]]), x[:2, :2]), (4, 6)),
    "scatter_reduce": (
        lambda x: x.scatter_reduce(1, torch.tensor([[0, 0], [2, 3]]), x[:2, :2], "mean"), (4, 6),
    ),
    "trapezoid": (lambda x: torch.trapezoid(x, dx=3.0), (4, 6)),
    "solve_triangular": (
        lambda x: torch.linalg.solve_triangular(torch.eye(4).expand(2, 4, 4) + x.tril(), x, upper=False),
        (2, 4, 4),
    ),
    "svd_lowrank": (lambda x: torch.svd_lowrank(x, 2)[1], (2, 3, 2)),
    "frequencies": (lambda x: F.embedding(torch.tensor([0, 1, 0]), x, scale_grad_by_freq=True), (4, 6)),
    "tables": (lambda x: F.embedding(torch.tensor([0, 1]), x) * F.embedding(torch.tensor([3, 0]), x), (4, 6)),
    "var": (lambda x: x.var(), (4, 6)),
    "hfft": (lambda x: torch.fft.hfft(x, norm="ortho"), (4, 5, 6)),
    "prod": (lambda x: x.prod(), (4, 6)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*can't be done on shards")
@pytest.mark.parametrize(
    "spec",
    [
        ["data_parallel"],
        [None, "data_parallel"],
        [("data_parallel", "model_parallel")],
        ["model_parallel", "data_parallel"],
    ],
)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_where_torchs_rules_are_wrong(mesh: Mesh, name: str, spec: list[Any]) -> None:
    function, size = GRADIENTS[name]
    torch.manual_seed(4)
    values = torch.randn(size)
    alone = values.clone().requires_grad_()
    given = monarch_nb.distribute(values, mesh, spec).requires_grad_()
    torch.manual_seed(4)
    wanted = function(alone)
    torch.manual_seed(4)
    found = function(given)
    weight = torch.arange(wanted.numel()).reshape(wanted.shape) % 7 + 1.0
    (found * weight).sum().backward()
    (wanted * weight).sum().backward()
    assert given.grad is not None and alone.grad is not None
    torch.testing.assert_close(found.full(), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(given.grad.full(), alone.grad, rtol=1e-4, atol=1e-4)


Lists = list[torch.Tensor]
OF_LISTS: dict[str, Callable[[Lists, Lists], Any]] = {
    "in place": lambda xs, ys: torch._foreach_addcdiv_(xs, ys, ys, value=0.5),
    "a number for each": lambda xs, ys: torch._foreach_mul_(xs, [float(n) for n in range(len(xs))]),
    "out of place": lambda xs, ys: torch._foreach_add(xs, ys, alpha=2.0),
    "reductions": lambda xs, ys: torch._foreach_norm(xs, 2),
    "inputs laid out anew": lambda xs, ys: torch._foreach_mul(xs, [*reversed(ys)]),
    "one kind": lambda xs, ys: torch._foreach_sqrt_(ys[:2]),
}


@pytest.mark.parametrize("name", OF_LISTS)
def test_lists_of_tensors_that_are_alike(mesh: Mesh, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's rules are asked of each kind once, and say what they say of all."""
    first, second = "data_parallel", "model_parallel"
    specs: list[Any] = [[first], [first], None, [None, second], None, [first]]
    plain = [torch.rand(4, 6) for _ in specs]
    outcomes: list[tuple[Any, Any]] = []
    by_kinds = Propagation._by_kinds

    def both(self: Propagation, *given: Any) -> Any:
        outcomes.append((by_kinds(self, *given), self._by_rules(*given)))
        return outcomes[-1][0]

    monkeypatch.setattr(Propagation, "_by_kinds", both)
    mesh.tensor_grid().engine.plans.clear()
    there = [monarch_nb.distribute(x, mesh, spec) for x, spec in zip(plain, specs, strict=True)]
    ours = OF_LISTS[name](there, [x.clone() for x in there])
    theirs = OF_LISTS[name](plain, [x.clone() for x in plain])
    for mine, expected in zip(ours or there, theirs or plain, strict=True):
        torch.testing.assert_close(mine.full(), expected)  # type: ignore[attr-defined]
    assert outcomes and all(one == other for one, other in outcomes)
