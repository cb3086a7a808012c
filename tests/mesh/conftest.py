"""A mesh of 2 x 2 ranks: on one host, and on two that talk tcp with CURVE. The actor model is tested on
both.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from own_meshes import one_or_two_hosts
from two_by_two import spawn_two_by_two

import monarch_nb.actor
from monarch_nb.actor import HostMesh, MeshFailure, ProcMesh


@pytest.fixture(scope="session", params=["one_host", "two_hosts"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    """A host mesh without dimensions, or one of two hosts."""
    with one_or_two_hosts(request.param) as found:
        yield found


@pytest.fixture(scope="session")
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    """Four ranks that live for all tests of one kind of host."""
    mesh = spawn_two_by_two(hosts)
    mesh.initialized.get(60)
    yield mesh
    mesh.stop().get(30)


@pytest.fixture
def doomed(hosts: HostMesh) -> Iterator[ProcMesh]:
    """Four ranks of a test's own, which may kill them."""
    mesh = spawn_two_by_two(hosts)
    mesh.initialized.get(60)
    yield mesh
    if not mesh._stopped:
        mesh.stop(grace_s=0.0).get(30)


@pytest.fixture
def unhandled(monkeypatch: pytest.MonkeyPatch) -> list[MeshFailure]:
    """Collect what the hook is told, instead of printing it."""
    heard: list[MeshFailure] = []
    monkeypatch.setattr(monarch_nb.actor, "unhandled_fault_hook", heard.append)
    return heard
