"""The package as a whole: public names, what importing it costs, examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import monarch_nb.actor

ACTOR_NAMES = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "BootstrapCommand",
    "Channel",
    "ChannelTransport",
    "Checkpointed",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HealReport",
    "HostMesh",
    "MeshFailure",
    "Point",
    "Port",
    "PortReceiver",
    "ProcMesh",
    "RankTimeout",
    "RankedPortReceiver",
    "Shape",
    "SupervisionError",
    "ValueMesh",
    "as_endpoint",
    "attach_to_workers",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_meter",
    "get_or_spawn_controller",
    "heal_mesh",
    "hosts_from_config",
    "local_proc_mesh",
    "proc_mesh",
    "run_worker_loop_forever",
    "send",
    "shutdown_context",
    "span",
    "this_host",
    "this_proc",
    "traced",
    "unhandled_fault_hook",
]

HEAVY = ("torch", "IPython", "ipywidgets", "zmq", "cloudpickle", "asyncio", "numpy", "email")


RDMA_NAMES = [
    "BroadcastReceipt",
    "Published",
    "RDMAAction",
    "RDMABuffer",
    "Receipt",
    "Transfer",
    "empty",
    "get_rdma_backend",
    "is_ibverbs_available",
    "load_into",
    "publish",
    "use_path",
]


def test_public_names_of_the_data_plane() -> None:
    import monarch_nb.rdma

    assert sorted(monarch_nb.rdma.__all__) == RDMA_NAMES


def test_public_names_of_the_actor_model() -> None:
    assert sorted(monarch_nb.actor.__all__) == ACTOR_NAMES
    assert all(hasattr(monarch_nb.actor, name) for name in ACTOR_NAMES)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_by("import monarch_nb") == set()


def test_importing_the_model_imports_no_torch() -> None:
    assert loaded_by("import monarch_nb.actor") & {"torch", "IPython", "ipywidgets", "numpy"} == set()


def test_the_host_process_imports_nothing_heavy_but_zmq() -> None:
    assert (
        loaded_by("import monarch_nb._host.controller.controller, monarch_nb._host.agent.agent")
        & {"torch", "IPython", "numpy", "cloudpickle", "asyncio", "email"}
        == set()
    )


def test_a_host_process_imports_little_before_its_zygote_begins_to_import() -> None:
    assert loaded_by("import monarch_nb._host.main") == set()


EXAMPLES = [
    "_client.subscribers",
    "_frames.cells",
    "_frames.owner",
    "_host.agent.dumped",
    "_protocol.base",
    "_protocol.registry",
    "_host.controller.heal_steps",
    "_host.controller.left_out",
    "_host.controller.workflow",
    "_journal.disk",
    "_journal.entries",
    "_journal.record",
    "_journal.secrets",
    "_tensor.reads",
    "_tensor.returned",
    "_protocol.claims",
    "_protocol.exits",
    "_protocol.journal",
    "_protocol.warm",
    "_rank.environment",
    "_rank.frame_variables",
    "_rank.operators",
    "_rank.tensor.cuts",
    "_rank.tensor.files",
    "_rank.tensor.inside",
    "_parallel.contents",
    "_rank.tensor.checksums",
    "_tensor.references",
    "_parallel.dry.values",
    "_rank.tensor.laying",
    "_rank.trace",
    "_rank.variables",
    "_shape.cpu_set",
    "_shape.elastic",
    "_shape.extent",
    "_shape.rank_set",
    "_shape.shape",
    "mesh.delegate",
    "_wire.codec",
    "_wire.plain",
    "_wire.granted",
    "_wire.limits",
    "_wire.message",
    "_wire.activity_page",
    "_wire.invitation",
    "_wire.pieces",
    "_wire.process",
    "_wire.resuming",
    "actor.bootstrap_command",
    "actor.telemetry",
    "actor.value_mesh",
    "actor.worker_address",
    "config",
    "_display.ansi",
    "_display.bars",
    "_display.bundle",
    "_display.card_html",
    "_display.cell_view",
    "_display.errors",
    "_display.fold",
    "_display.printed",
    "_display.lines",
    "_display.live",
    "_display.progress",
    "_display.stack_view",
    "_display.style",
    "_display.table",
    "_display.template",
    "_display.top",
    "exceptions",
    "_folding",
    "mesh.environment",
    "mesh.variables",
    "profile.memory",
    "profile.operators",
    "profile.trace_file",
    "rdma.question",
    "rdma.box",
    "rdma.doctor.report",
    "rdma.layout",
    "rdma.local_future",
    "rdma.doctor.measuring",
    "rdma.paths.tcp.checksum",
    "rdma.paths.tcp.dial",
    "rdma.paths.tcp.exchange",
    "rdma.paths.tcp.handshake",
    "rdma.paths.verbs.errors",
    "rdma.paths.verbs.plan",
    "rdma.paths.verbs.port",
    "rdma.broadcast.ready_barrier",
    "rdma.segments",
    "_server.bodies",
    "_server.starting",
    "_stacks",
    "status.delta",
    "status.text",
    "_units",
]
"""Modules whose examples need no mesh."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"monarch_nb.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


RDMA_ROOMS = ("rdma.broadcast", "rdma.doctor", "rdma.paths", "rdma.paths.tcp", "rdma.paths.verbs")


def test_no_example_of_the_pure_rooms_is_left_out() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = set()
    for room in ("_shape", "_wire", "_journal", "_display", "rdma", *RDMA_ROOMS):
        package = importlib.import_module(f"monarch_nb.{room}")
        for info in pkgutil.iter_modules(package.__path__, f"{room}."):
            tests = finder.find(importlib.import_module(f"monarch_nb.{info.name}"))
            if any(not e.options.get(doctest.SKIP) for test in tests for e in test.examples):
                found.add(info.name)
    assert found <= set(EXAMPLES)
