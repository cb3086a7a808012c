"""Implements `monarch-nb run`: runs a script on an existing mesh, or on a new one that ends with the
script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from monarch_nb import mesh as meshes
from monarch_nb._commands.parser import Namespace
from monarch_nb._commands.script import prepared
from monarch_nb._display import CellView, LiveDisplay, ViewWatcher
from monarch_nb._host.agent.process import visible_gpus
from monarch_nb._wire.granted import granted_cores
from monarch_nb.exceptions import MeshError, MeshUsageError
from monarch_nb.mesh import Mesh

INTERRUPTED = 130


def run(arguments: Namespace, attach: Callable[[str], Mesh], say: Callable[[str], None]) -> int:
    """Run a script; return the exit status, 1 if it has failed on any rank.

    Args:
        attach: connects to a mesh that runs.
        say: prints an error of the run's to stderr.

    Raises:
        MeshUsageError: if the arguments contradict each other.
    """
    _check(arguments)
    if arguments.name is not None:
        return _run_on(attach(arguments.name), arguments, say)
    mesh = _own_mesh(arguments.nproc_per_node or "1")
    try:
        return _run_on(mesh, arguments, say)
    finally:
        mesh.stop().get(30)


def _check(arguments: Namespace) -> None:
    if arguments.nnodes != 1:
        raise MeshUsageError(
            "--nnodes: a run of its own is on this machine. For several hosts, start a mesh on them, "
            "then: monarch-nb run --name MESH SCRIPT"
        )
    if arguments.name is not None and arguments.nproc_per_node is not None:
        raise MeshUsageError(
            "give --name or --nproc-per-node, not both: a mesh that runs has its ranks, and --ranks "
            "chooses some"
        )


def _own_mesh(wanted: str) -> Mesh:
    # Not dimension "gpus": as under torchrun each rank sees all of them, and chooses by LOCAL_RANK.
    return meshes.start(f"run-{os.getpid()}", {"procs": _num_ranks(wanted)}, with_program=True)


def _num_ranks(wanted: str) -> int:
    if wanted.isdigit():
        return int(wanted)
    num_gpus = 0 if wanted == "cpu" else len(visible_gpus())
    if wanted == "gpu" and not num_gpus:
        raise MeshUsageError("--nproc-per-node gpu: this machine has no GPU; give a number, auto or cpu")
    return num_gpus or granted_cores()


def _run_on(mesh: Mesh, arguments: Namespace, say: Callable[[str], None]) -> int:
    for count in range(arguments.max_restarts + 1):
        error = _run_once(mesh, arguments, count)
        if error is None:
            return 0
        say(str(error))
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        if count < arguments.max_restarts:
            print("it is run again", file=sys.stderr)
            with suppress(MeshError):  # losses that couldn't be repaired are reported by the next run
                mesh.heal()
    return 1


def _run_once(mesh: Mesh, arguments: Namespace, count: int) -> BaseException | None:
    """Run the script; return its error.

    Args:
        count: how often it was run again by now, which torchrun's scripts are told.
    """
    ranks = mesh.select(arguments.ranks)
    restarts = {
        "TORCHELASTIC_RESTART_COUNT": str(count),
        "TORCHELASTIC_MAX_RESTARTS": str(arguments.max_restarts),
    }
    script = prepared(mesh, ranks, arguments, restarts)
    view = CellView(ranks, len(mesh), more_hint="monarch-nb logs")
    with LiveDisplay(view):
        view.started()
        watcher = ViewWatcher(view)
        return (
            mesh.submit(script.line, ranks, watcher=watcher, timeout=arguments.timeout, script=script)
            .wait()
            .error()
        )
