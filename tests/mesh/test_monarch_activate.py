"""What a Monarch program does with an active mesh, until there are tensors of the mesh: an error, and
nothing else is disturbed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from monarch_nb import get_active_mesh
from monarch_nb.actor import ProcMesh
from monarch_nb.exceptions import NoTensorEngine

T = 60


def test_a_tensor_made_where_a_mesh_is_active_is_an_error(procs: ProcMesh) -> None:
    with procs.activate():
        assert get_active_mesh() is procs
        for make in (lambda: torch.rand(3), lambda: torch.tensor([1.0]), lambda: torch.nn.Linear(2, 2)):
            with pytest.raises(
                NoTensorEngine,
                match=r"torch\.\w+\(\) in `with mesh.activate\(\)` would make a tensor of the mesh",
            ):
                make()
    assert torch.rand(3).shape == (3,) and get_active_mesh() is None


def test_calls_go_on_where_a_mesh_is_active(procs: ProcMesh) -> None:
    mine, large = torch.arange(3.0), np.ones(1 << 18)
    with procs.activate():
        sums = procs.execute(lambda a, b: (a + b.sum(), torch.ones(1 << 18)), mine, large).get(T)
        first, ones = next(iter(sums.values()))
        assert (first - mine).tolist() == [float(1 << 18)] * 3
        assert ones.sum() == 1 << 18
