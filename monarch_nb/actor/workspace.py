"""Copies folders of this program to hosts, under Monarch's name: `HostMesh.sync_workspace`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb import _reload
from monarch_nb._client.session import Session
from monarch_nb._protocol.programs import Status
from monarch_nb._protocol.states import ProcState
from monarch_nb._reload import RankReload, ReloadRequest
from monarch_nb._sync import SyncOptions, SyncReceipt, workspaces_of
from monarch_nb._wire import address
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError, RankTimeout

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future

RELOAD_S = 10.0
Ask = Callable[[int, ReloadRequest], "Future[Any]"]
"""Has one process reload modules."""


@dataclass(frozen=True)
class Workspace:
    """The folders that are copied to hosts.

    Attributes:
        dirs: paths of this machine. Of a mapping, the keys: where folders lie on hosts is not for the program
            to say, for ranks find them by the paths of this machine.
        env: Monarch's; not used here.

    Example:
        >>> Workspace(dirs=["~/proj"])
        Workspace(dirs=['~/proj'], env=None)
    """

    dirs: Sequence[str | os.PathLike[str]] | Mapping[str | os.PathLike[str], str] = ()
    env: Any = None

    def folders(self) -> tuple[str, ...]:
        """Return the folders as absolute paths.

        Raises:
            MeshUsageError: naming the one that isn't there.
        """
        dirs = [self.dirs] if isinstance(self.dirs, str | os.PathLike) else list(self.dirs)
        found = tuple(os.path.abspath(os.path.expanduser(os.fspath(path))) for path in dirs)
        for path in found:
            if not os.path.isdir(path):
                raise MeshUsageError(
                    f"sync_workspace: there is no folder {path}: Workspace(dirs=[...]) takes folders "
                    "of this machine"
                )
        return found


def sync_hosts(
    session: Session, hosts: Sequence[int], workspace: Workspace, ask: Ask, *, auto_reload: bool
) -> SyncReceipt:
    """Copy folders to hosts; have the ranks there find them, and reload changed modules if requested."""
    start = time.monotonic()
    far = [index for index in hosts if index]
    spaces = workspaces_of(session)
    folders = workspace.folders()
    parts = spaces.bring(far, folders, SyncOptions()) if far else ()
    paths = None if auto_reload else ()
    program = _reload.reload_changed(ReloadRequest(paths))
    rows = session.request(Status()).procs
    living = [
        row.proc for row in rows if row.state == ProcState.RUNNING and address.host_of(row.proc) in hosts
    ]
    futures = {
        i: ask(proc, ReloadRequest(paths, elsewhere=spaces.pairs(address.host_of(proc))))
        for i, proc in enumerate(living)
    }
    ranks, busy, lost = answers(futures, start + RELOAD_S)
    return SyncReceipt(ranks, program, busy, lost, time.monotonic() - start, parts=parts)


def answers(
    futures: Mapping[int, Future[Any]], limit: float
) -> tuple[dict[int, RankReload], tuple[int, ...], dict[int, str]]:
    """Return the ranks' answers to a reload, the ranks that hadn't answered by `limit` (monotonic), and why
    some couldn't be asked.
    """
    ranks: dict[int, RankReload] = {}
    busy, lost = [], {}
    for rank, future in futures.items():
        try:
            ranks[rank] = future.get(max(0.0, limit - time.monotonic())).item()
        except RankTimeout:
            busy.append(rank)
        except DeviceMeshError as error:
            lost[rank] = str(error).splitlines()[0]
    return ranks, tuple(busy), lost
