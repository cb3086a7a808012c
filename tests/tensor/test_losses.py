"""Losses over rows that ranks share: the numbers are those of one process, however rows count."""

from __future__ import annotations

import gc
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

import monarch_nb
from monarch_nb.distributed import Mesh

CLASSES = 5
IGNORED = -100


class Case(NamedTuple):
    """What a loss is called with.

    Attributes:
        size: of the input; its second dimension are classes.
        ignored: rows whose target is ignored.
        named: other arguments.
    """

    size: tuple[int, ...] = (8, CLASSES)
    ignored: tuple[int, ...] = ()
    named: dict[str, Any] = {}


WEIGHT = torch.tensor([0.1, 2.0, 0.0, 1.0, 0.5])
CASES = {
    "mean": Case(),
    "padding in one place": Case(ignored=(5, 6, 7)),
    "a rank's rows are all padding": Case(ignored=(0, 1, 2, 3, 4)),
    "all is padding": Case(ignored=tuple(range(8))),
    "parts of two sizes": Case((7, CLASSES), ignored=(6,)),
    "fewer rows than ranks": Case((1, CLASSES)),
    "weights of classes": Case(named={"weight": WEIGHT}),
    "weights and padding": Case(ignored=(1, 2), named={"weight": WEIGHT}),
    "another number for padding": Case(ignored=(0, 1), named={"ignore_index": 3}),
    "smooth labels": Case(ignored=(1,), named={"label_smoothing": 0.1}),
    "sequences": Case((8, CLASSES, 6), ignored=(0, 3), named={"weight": WEIGHT}),
    "images": Case((4, CLASSES, 2, 3), ignored=(2,)),
    "sum": Case(ignored=(1,), named={"reduction": "sum", "weight": WEIGHT}),
    "none": Case(ignored=(1,), named={"reduction": "none"}),
    "one row": Case((CLASSES,)),
}


@pytest.mark.parametrize(
    "spec", [["data_parallel"], [("data_parallel", "model_parallel")], [None], "targets"]
)
@pytest.mark.parametrize("name", CASES)
def test_cross_entropy(mesh: Mesh, name: str, spec: Any) -> None:
    """`targets`: those lie on the ranks already, by rows, and the input is whole."""
    case = CASES[name]
    torch.manual_seed(3)
    values = torch.randn(case.size)
    targets = torch.randint(CLASSES, (*case.size[:1], *case.size[2:]) if len(case.size) > 1 else ())
    if targets.dim():
        targets[list(case.ignored)] = case.named.get("ignore_index", IGNORED)
    alone = values.clone().requires_grad_()
    wanted = F.cross_entropy(alone, targets, **case.named)
    wanted.sum().backward()

    is_whole = spec == "targets" or len(case.size) == 1
    rows = monarch_nb.distribute(values, mesh, [] if is_whole else spec).requires_grad_()
    given = (
        monarch_nb.distribute(targets, mesh, ["data_parallel"])
        if spec == "targets" and targets.dim()
        else targets
    )
    with warnings.catch_warnings():
        if "smooth" not in name and "parts" not in name and "fewer" not in name:
            warnings.simplefilter("error")  # that all ranks gather the input
        found = F.cross_entropy(rows, given, **case.named)
        found.sum().backward()
    assert rows.grad is not None and alone.grad is not None
    torch.testing.assert_close(found.full(), wanted, equal_nan=True)
    torch.testing.assert_close(rows.grad.full(), alone.grad, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(mesh: Mesh, dtype: torch.dtype) -> None:
    """A sum of 40,000 losses has no room in half a float's range; a mean has."""
    torch.manual_seed(3)
    values, targets = torch.randn(40_000, CLASSES, dtype=dtype) * 4, torch.randint(CLASSES, (40_000,))
    targets[:30_000] = IGNORED
    values = values.log_softmax(1)
    rows = monarch_nb.distribute(values, mesh, ["data_parallel"])
    found, wanted = F.nll_loss(rows, targets).full(), F.nll_loss(values.double(), targets)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_a_step_with_padding_sends_nothing_more(mesh: Mesh) -> None:
    """Ranks that know all targets count them by themselves; a sum over ranks would make them wait."""
    rows = monarch_nb.distribute(torch.randn(8, CLASSES), mesh, ["data_parallel"]).requires_grad_()

    def step() -> None:
        F.cross_entropy(rows, torch.randint(CLASSES, (8,))).backward()

    step()
    before = mesh.execute(num_collectives)
    for _ in range(5):
        step()
    assert before == mesh.execute(num_collectives)
    rows.sum().item()
    assert before != mesh.execute(num_collectives)


def num_collectives() -> int:
    """On a rank: return how often all groups of device meshes have communicated."""
    meshes = [each for each in gc.get_objects() if isinstance(each, DeviceMesh)]
    groups = {each.get_group(axis) for each in meshes for axis in range(each.ndim)}
    return sum(each._get_sequence_number_for_group() for each in groups)


def test_what_is_recorded(mesh: Mesh) -> None:
    """A step that's recorded and replayed, with other padding each time."""
    weights = torch.randn(CLASSES, CLASSES)
    model = monarch_nb.distribute(weights, mesh, []).requires_grad_()
    plain = weights.clone().requires_grad_()

    def loss(weight: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = F.cross_entropy(rows @ weight, targets)
        found.backward()
        return found.detach()

    step = monarch_nb.compile(loss)
    torch.manual_seed(5)
    for n in range(8):
        values, targets = torch.randn(8, CLASSES), torch.randint(CLASSES, (8,))
        targets[:n] = IGNORED
        rows = monarch_nb.distribute(values, mesh, ["data_parallel"])
        found, wanted = step(model, rows, targets), loss(plain, values, targets)
        torch.testing.assert_close(found.full(), wanted)
    assert model.grad is not None and plain.grad is not None
    torch.testing.assert_close(model.grad.full(), plain.grad)
