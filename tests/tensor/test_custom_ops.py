"""Operations that torch doesn't bring: registered by a module, or by a cell."""

from __future__ import annotations

from typing import Any

import custom_op
import pytest
import torch

import monarch_nb
from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import DeviceMeshError, WrongTensor

OF_A_CELL = """
import torch
@torch.library.custom_op("monarch_nb_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
"""


@pytest.mark.filterwarnings("ignore:monarch_nb_tests")
def test_ranks_import_the_module_that_registers_an_operation(mesh: Mesh) -> None:
    whole = torch.arange(8.0)
    found = custom_op.thrice(monarch_nb.distribute(whole, mesh, ["data_parallel"]))
    assert torch.equal(found.full(), whole * 3)


@pytest.mark.filterwarnings("ignore:monarch_nb_tests")
def test_one_that_a_cell_registers_is_to_be_registered_on_ranks_too(mesh: Mesh) -> None:
    here: dict[str, Any] = {"__name__": "__main__"}
    exec(OF_A_CELL, here)
    whole = torch.arange(8.0)
    sharded = monarch_nb.distribute(whole, mesh, ["data_parallel"])
    with pytest.raises(
        DeviceMeshError,
        match=r"failed on ranks 0-3: LookupError: monarch_nb_tests::twice isn't registered on this rank. "
        r"Register it there, too: run the cell that does so with %%mesh --always",
    ):
        here["twice"](sharded).full()
    mesh.execute(lambda: exec(OF_A_CELL, {"__name__": "__main__"}))
    assert torch.equal(here["twice"](sharded).full(), whole * 2)


@pytest.mark.parametrize("to_sparse", ["to_sparse", "to_sparse_csr"])
def test_sparse_results_are_refused_in_a_sentence(mesh: Mesh, to_sparse: str) -> None:
    x = monarch_nb.distribute(torch.eye(4), mesh, ["data_parallel"])
    with pytest.raises(WrongTensor, match=r"makes a sparse tensor; tensors of a mesh are dense.*x\.full"):
        getattr(x, to_sparse)()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("to_sparse", ["to_sparse", "to_sparse_csr"])
def test_sparse_tensors_are_not_distributed(mesh: Mesh, to_sparse: str) -> None:
    with pytest.raises(WrongTensor, match="takes dense tensors that have numbers, not a sparse one"):
        monarch_nb.distribute(getattr(torch.eye(4), to_sparse)(), mesh)
