"""Meshes that tests start for themselves, and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from monarch_nb import mesh as meshes
from monarch_nb._client import session as sessions
from monarch_nb.actor import HostMesh, shutdown_context, this_host
from monarch_nb.job import ProcessJob
from monarch_nb.mesh import Mesh


@contextmanager
def own_mesh(name: str, dims: Mapping[str, int], **options: Any) -> Iterator[Mesh]:
    """Start a named mesh; afterwards it has ended, and this program is in the one where it was."""
    before = sessions._current
    started = meshes.start(name, dims, **options)
    try:
        yield started
    finally:
        started.stop().get(30)
        sessions._current = before


@contextmanager
def own_this_host() -> Iterator[None]:
    """Let `this_host()` be a mesh of its own, which has ended afterwards; that of other tests goes on."""
    before, sessions._current = sessions._current, None
    try:
        yield
    finally:
        shutdown_context().get(30)
        sessions._current = before


@contextmanager
def one_or_two_hosts(kind: str) -> Iterator[HostMesh]:
    """This host ("one_host"), a mesh without dimensions; or one of two host processes that talk tcp with
    CURVE.
    """
    if kind == "one_host":
        yield this_host()
        return
    job = ProcessJob({"hosts": 2})
    yield job.state().hosts
    job.kill()
