"""The data plane is tested with real processes: ranks of a mesh on one host and on two, or two bare
processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from own_meshes import one_or_two_hosts

from monarch_nb.actor import HostMesh, ProcMesh


@pytest.fixture(scope="session", params=["one_host", "two_hosts"])
def host_mesh(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    """This host, or two host processes that talk tcp with CURVE."""
    with one_or_two_hosts(request.param) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(host_mesh: HostMesh) -> Iterator[ProcMesh]:
    """Two ranks, on one host each where there are two. A module's own: what its actors hold ends with it."""
    mesh = host_mesh.spawn_procs(per_host={"gpus": 2 if host_mesh.extent.nelements == 1 else 1})
    mesh.initialized.get(60)
    flat = mesh.flatten("ranks") if len(mesh.extent) > 1 else mesh.rename(gpus="ranks")
    yield flat
    mesh.stop().get(30)
