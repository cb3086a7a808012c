"""Brings hosts that have joined later, or replaced a lost host, up to date: they get the workspace, and are
compared with this program, like those of a mesh that starts.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import HostState
from monarch_nb._protocol.work import Work
from monarch_nb._reload import ReloadRequest
from monarch_nb._sync import WorkspaceReceipt, Workspaces, known_workspaces
from monarch_nb.actor.handle import session_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.actor.workspace import answers
from monarch_nb.exceptions import MeshUsageError
from monarch_nb.mesh import brought, drift

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future
    from monarch_nb.mesh.core import Mesh

_TELL_S = 10.0
"""How long to wait for ranks of new hosts to be told where the files are."""
_GONE = (HostState.LEAVING, HostState.STOPPED)
_seen: weakref.WeakKeyDictionary[Session, int] = weakref.WeakKeyDictionary()
"""Number of moves of ranks when their hosts were last checked, by session."""
_compared: weakref.WeakKeyDictionary[Session, dict[int, int]] = weakref.WeakKeyDictionary()
"""Generations of the hosts, by which newcomers are recognised, by session."""


def supply(mesh: Mesh) -> None:
    """Bring hosts that have joined later up to date; print that, and their differences.

    Costs nothing unless ranks were started anew, or the mesh has got other sizes.
    """
    session = session_of(mesh)
    if _seen.get(session, 0) == session.num_moves:
        return
    _seen[session] = session.num_moves
    brought.supply(mesh)
    rows = session.request(Status()).hosts
    ours = set(mesh.living().host_indices)
    generations = {r.index: r.generation for r in rows if r.index in ours and r.state == HostState.UP}
    spaces = known_workspaces(session)
    if spaces is not None:
        spaces.forget({row.index for row in rows if row.state in _GONE})
        _bring(mesh, spaces, {index: g for index, g in generations.items() if index})
    known = _compared.setdefault(session, {})
    new = {index for index, generation in generations.items() if known.get(index, 0) != generation}
    known.update(generations)
    drift.compare_newcomers(session, new)
    drift.compare_later(session, generations)


def _bring(mesh: Mesh, spaces: Workspaces, generations: dict[int, int]) -> None:
    try:
        receipts = spaces.bring_to_newcomers(generations)
    except MeshUsageError as error:
        print(f"hosts that have joined lack the workspace: {error}", file=sys.stderr)
        return
    new = sorted({index for receipt in receipts for index in receipt.hosts})
    _tell_ranks(mesh, spaces, new)
    for receipt in receipts:
        if any(not host.is_shared for host in receipt.hosts.values()):
            print("\n".join(_lines(receipt)), file=sys.stderr)


def _lines(receipt: WorkspaceReceipt) -> list[str]:
    rest = [] if receipt.is_done else ["%mesh sync tries again"]
    return [f"hosts have joined since workspace {receipt.folder} was sent:", *receipt.host_lines(), *rest]


def _tell_ranks(mesh: Mesh, spaces: Workspaces, hosts: Sequence[int]) -> None:
    """Tell ranks of hosts the paths of the files."""
    futures: dict[int, Future[Any]] = {}
    for rank in mesh.living_ranks() if hosts else ():
        part = mesh.part([rank])
        pairs = spaces.pairs(part.host_indices[0]) if part.host_indices[0] in hosts else ()
        if pairs:
            futures[rank] = work_on(part, Work.RELOAD, ReloadRequest((), False, pairs), "sync")
    answers(futures, time.monotonic() + _TELL_S)
