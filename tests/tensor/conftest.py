"""One mesh of 2 x 2 ranks for all tests of tensors; those that break a mesh start their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from preloads import PRELOAD_TO_TRAIN

from monarch_nb.distributed import Mesh
from monarch_nb.exceptions import MeshError


@pytest.fixture(scope="session")
def mesh() -> Iterator[Mesh]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_PRELOAD", PRELOAD_TO_TRAIN)
        found = Mesh(shape=(2, 2), mesh_dim_names=("data_parallel", "model_parallel"))
    yield found
    # Other tests may have closed this program's connections: the mesh has ended with them.
    with suppress(MeshError):
        found.stop()


@pytest.fixture
def own_mesh() -> Iterator[Mesh]:
    """Two ranks that a test may kill."""
    with Mesh(shape=(2,), mesh_dim_names=("data_parallel",)) as found:
        yield found
