"""Operations without a sharding rule of torch: by ours they run on shards, and so do their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

import monarch_nb
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
