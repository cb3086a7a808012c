"""Implements `%mesh start --init-process-group` for a mesh that runs already; the other options of such a
start are handled in `mesh/running`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monarch_nb._commands.starting import prepare_distributed
from monarch_nb._protocol.states import RankState
from monarch_nb._shape import name_ranks
from monarch_nb.exceptions import MeshUsageError

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh

_ANSWER_S = 20.0
_PASSES_S = 1.0


def refuse_other_job(mesh: Mesh, job: str | None) -> None:
    """Raise if a running mesh has its hosts from another source than requested.

    Raises:
        MeshUsageError: if it has several, and should be local.
    """
    if job == "local" and "hosts" in mesh.sizes:
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} runs already with hosts={mesh.sizes['hosts']}, not with --job local. "
            f"For that, end it first: %mesh stop {mesh.name}; or choose another name"
        )


def take_on_group(mesh: Mesh, backend: str, timeout_s: float | None) -> str:
    """Create a process group in a running mesh, unless it has that one; return a message about it."""
    busy = _busy(mesh)
    if busy:
        one = len(busy) == 1
        return (
            f"--init-process-group was not looked at, for {name_ranks(busy)} {'is' if one else 'are'} "
            "busy: run this again afterwards"
        )
    found = mesh.execute(_backend_of_group).get(_ANSWER_S)
    has = set(found.values())
    if has == {""}:
        return f"torch.distributed is ready ({prepare_distributed(mesh, backend, timeout_s)})"
    if len(has) > 1 or (backend and has != {backend}):
        there = "; ".join(
            f"{name_ranks([r for r, b in enumerate(found.values()) if b == each])}: {each or 'none'}"
            for each in sorted(has)
        )
        raise MeshUsageError(
            f"start: mesh {mesh.name!r} has process groups already ({there}), and can't get another "
            "one. End them in a cell: %%mesh, then torch.distributed.destroy_process_group(); then "
            "start again"
        )
    ignored = (
        ""
        if timeout_s is None
        else ", and so is its time-out: --group-timeout is fixed when the group is made"
    )
    return f"torch.distributed is ready ({has.pop()}), as it was{ignored}"


def _busy(mesh: Mesh) -> list[int]:
    """Return ranks that are busy for some time: a rank that has just ended its work may still be seen as
    busy.
    """
    deadline = time.monotonic() + _PASSES_S
    while busy := [r.rank for r in mesh.status().ranks if r.state != RankState.IDLE]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return busy


def _backend_of_group() -> str:
    import sys

    dist = sys.modules.get("torch.distributed")
    return (
        str(dist.get_backend()) if dist is not None and dist.is_available() and dist.is_initialized() else ""
    )
