"""The package as a whole: public names, what importing it costs, examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

import monarch_nb.actor

ACTOR_NAMES = [
    "Accumulator", "Actor", "ActorError", "ActorMesh", "Channel", "Context", "Endpoint", "Extent", "Future", "HostMesh",
    "MeshFailure", "Point", "Port", "PortReceiver", "ProcMesh", "RankTimeout", "RankedPortReceiver", "Shape",
    "SupervisionError", "ValueMesh", "as_endpoint", "attach_to_workers", "concurrent_endpoint", "context",
    "current_actor_name", "current_rank", "current_size", "endpoint", "get_or_spawn_controller", "local_proc_mesh",
    "proc_mesh", "run_worker_loop_forever", "send", "shutdown_context", "this_host", "this_proc", "unhandled_fault_hook",
]  # fmt: skip

HEAVY = ("torch", "IPython", "ipywidgets", "zmq", "cloudpickle", "asyncio", "numpy")


def test_public_names_of_the_actor_model() -> None:
    assert sorted(monarch_nb.actor.__all__) == ACTOR_NAMES
    assert all(hasattr(monarch_nb.actor, name) for name in ACTOR_NAMES)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_by("import monarch_nb") == set()


def test_importing_the_model_imports_no_torch() -> None:
    assert loaded_by("import monarch_nb.actor") & {"torch", "IPython", "ipywidgets", "numpy"} == set()


def test_the_host_process_imports_no_torch() -> None:
    assert loaded_by("import monarch_nb._host.process") & {"torch", "IPython", "numpy", "cloudpickle"} == set()


@pytest.mark.parametrize(
    "name",
    ["_shape.extent", "_shape.shape", "_shape.rank_set", "_wire.message", "_wire.codec", "actor.value_mesh", "status",
     "magics.verbs", "display.fold", "display.ansi"],
)  # fmt: skip
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"monarch_nb.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
