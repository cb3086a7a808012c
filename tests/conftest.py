"""What all tests share: at the end, nothing that they started is left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from processes import PATIENCE_S, mesh_processes, wait_for_exit

settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")
"""How long an example takes says how busy the machine is, not whether the code is right."""


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail if a process, socket directory or thread of ours outlives the tests."""
    os.environ["JUPYTER_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))
    os.environ["JUPYTER_DATA_DIR"] = str(tmp_path_factory.mktemp("data"))
    os.environ["MONARCH_NB_WITH_KERNEL"] = "0"  # nbclient runs the notebooks of these tests, but they stand for a person's
    before = set(mesh_processes())
    yield
    from monarch_nb._client import session

    session.shutdown()
    deadline = time.monotonic() + PATIENCE_S
    for pid in set(mesh_processes()) - before:
        wait_for_exit(pid, max(0.1, deadline - time.monotonic()))
    left = {pid: name for pid, name in mesh_processes().items() if pid not in before}
    assert not left, f"processes are left: {left}"
    ours = [t for t in threading.enumerate() if t.name.startswith(("monarch_nb", "actor-"))]
    for thread in ours:
        thread.join(PATIENCE_S)  # whoever watches a home's end has just heard of it
    threads = [t.name for t in ours if t.is_alive()]
    assert not threads, f"threads are left: {threads}"
