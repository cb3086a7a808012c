"""One mesh of 2 x 2 ranks for all tests of tensors; those that break a mesh start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch_nb.distributed import Mesh


@pytest.fixture(scope="session")
def mesh() -> Iterator[Mesh]:
    with Mesh(shape=(2, 2), mesh_dim_names=("data_parallel", "model_parallel")) as found:
        yield found


@pytest.fixture
def own_mesh() -> Iterator[Mesh]:
    """Two ranks that a test may kill."""
    with Mesh(shape=(2,), mesh_dim_names=("data_parallel",)) as found:
        yield found
