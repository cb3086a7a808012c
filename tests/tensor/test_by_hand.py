"""DTensors that users write by hand, in functions on the ranks: the numbers of one process, though the engine
of tensors has registered rules of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

import monarch_nb
from monarch_nb.distributed import Mesh

ROWS, CLASSES = 8, 5


def classes(x: Any) -> Any:
    """The class of each row, laid out as the rows are."""
    wanted = torch.arange(ROWS) % CLASSES
    if not isinstance(x, DTensor):
        return wanted
    return distribute_tensor(wanted, x.device_mesh, x.placements, src_data_rank=None)


WAYS: dict[str, Callable[[Any], Any]] = {
    "cross_entropy": lambda x: functional.cross_entropy(x, classes(x)),
    "cross_entropy, sum": lambda x: functional.cross_entropy(x, classes(x), reduction="sum"),
    "cross_entropy, none": lambda x: functional.cross_entropy(x, classes(x), reduction="none"),
    "nll_loss": lambda x: functional.nll_loss(x.log_softmax(1), classes(x)),
    "two losses": lambda x: functional.cross_entropy(x, classes(x)) + 2 * (x * x).mean(),
    "cumsum": lambda x: x.cumsum(-1),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
}


def by_hand(x: DTensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """On a rank: the result and the gradient of the input."""
    leaf = x.detach().requires_grad_()
    found = WAYS[name](leaf)
    (found if found.dim() == 0 else (found * found).sum()).backward()
    assert leaf.grad is not None
    return found.full_tensor().detach(), leaf.grad.full_tensor()


@pytest.mark.parametrize("is_used", [False, True], ids=["first", "after the mesh's own"])
@pytest.mark.parametrize("name", WAYS)
def test_a_function_on_ranks(mesh: Mesh, name: str, is_used: bool) -> None:
    whole = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0))
    x = monarch_nb.distribute(whole, mesh, ["data_parallel"])
    if is_used:
        functional.cross_entropy(x, monarch_nb.distribute(classes(whole), mesh, ["data_parallel"])).item()
    leaf = whole.clone().requires_grad_()
    wanted = WAYS[name](leaf)
    (wanted if wanted.dim() == 0 else (wanted * wanted).sum()).backward()
    found, gradient = mesh.execute(by_hand, x, name)
    assert leaf.grad is not None
    for rank in range(mesh.size()):
        assert torch.allclose(monarch_nb.inspect(found, rank=rank), wanted)
        assert torch.allclose(monarch_nb.inspect(gradient, rank=rank), leaf.grad, atol=1e-6)


def test_the_engine_beside_it_adds_up_rows(mesh: Mesh) -> None:
    """Where rows don't count, the mean of ranks' means is another number; both in one program."""
    whole, wanted = torch.randn(ROWS, CLASSES), torch.arange(ROWS) % CLASSES
    x = monarch_nb.distribute(whole, mesh, ["data_parallel"])
    for _ in range(2):
        wanted[3:] = -100
        y = monarch_nb.distribute(wanted, mesh, ["data_parallel"])
        found = functional.cross_entropy(x, y)
        assert found.item() == pytest.approx(functional.cross_entropy(whole, wanted).item())
        mesh.execute(by_hand, x, "cross_entropy")
