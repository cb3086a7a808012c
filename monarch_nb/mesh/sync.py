"""New code on all ranks: which modules were reloaded where, and what ranks do by themselves about files that change."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb import _reload
from monarch_nb._reload import SYNC_VARIABLE, RankReload, ReloadRequest, SyncMode
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError, RankTimeout
from monarch_nb.sync import SyncReceipt

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future
    from monarch_nb.mesh.core import Mesh

SYNC_S = 10.0
MODE_S = 1.0
"""So long ranks are waited for that are to do something else from now on."""
_NAME = "sync"


def sync(mesh: Mesh, paths: Sequence[str | os.PathLike[str]], *, dry_run: bool, timeout_s: float) -> SyncReceipt:
    """Have this program and all ranks of a mesh reload what has changed; see `Mesh.sync`."""
    start = time.monotonic()
    request = ReloadRequest(_absolute(paths) or None, dry_run)
    program = _reload.reload_changed(request)
    futures: dict[int, Future[Any]] = {
        rank: mesh.part([rank])._work(b"reload", request, "sync") for rank in mesh.living_ranks()
    }
    ranks: dict[int, RankReload] = {}
    busy, lost = [], {}
    for rank, future in futures.items():
        try:
            ranks[rank] = future.get(max(0.0, start + timeout_s - time.monotonic())).item()
        except RankTimeout:
            busy.append(rank)
        except DeviceMeshError as error:
            lost[rank] = str(error).splitlines()[0]
    return SyncReceipt(ranks, program, tuple(busy), lost, time.monotonic() - start, dry_run)


def _absolute(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    found = []
    for path in paths:
        name = os.path.abspath(os.path.expanduser(os.fspath(path)))
        if not os.path.exists(name):
            raise MeshUsageError(f"sync: there is no {os.fspath(path)!r} ({name}): expected a file or folder of yours; without any, all that has changed is reloaded")
        found.append(name)
    return tuple(found)


def sync_mode(mesh: Mesh) -> SyncMode:
    """Return what ranks do about code that has changed."""
    return SyncMode.of(mesh._session.request("get_name", name=_NAME) or mesh.started_with_env.get(SYNC_VARIABLE))


def set_sync_mode(mesh: Mesh, mode: str) -> None:
    """Have ranks do something else about code that has changed, and those that take their places; busy ones when they're done."""
    if mode not in tuple(SyncMode):
        raise MeshUsageError(f"sync_mode is one of {', '.join(SyncMode)}, not {mode!r}")
    mesh._session.request("set_name", name=_NAME, value=str(mode))
    with suppress(RankTimeout, DeviceMeshError):  # those that are busy read it when they're done; those that have died, when they're started again
        mesh.living().set_environment({SYNC_VARIABLE: str(mode)}).get(MODE_S)
