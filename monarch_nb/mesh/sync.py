"""Brings new code to all ranks: reports which modules were reloaded where, and sets how ranks react to
changed files.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from monarch_nb import _reload
from monarch_nb._protocol.names import GetName, SetName
from monarch_nb._protocol.work import Work
from monarch_nb._reload import SYNC_VARIABLE, ReloadRequest, SyncMode
from monarch_nb._sync import Followed, Part, SyncOptions, SyncReceipt, known_workspaces, workspaces_of
from monarch_nb.actor.handle import session_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.actor.workspace import answers
from monarch_nb.exceptions import DeviceMeshError, MeshUsageError, RankTimeout, StaleCode
from monarch_nb.mesh import brought, drift, newcomers
from monarch_nb.mesh.brought import EnvironmentChoice

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future
    from monarch_nb.mesh.core import Mesh

SYNC_S = 10.0
MODE_S = 1.0
"""How long to wait for ranks to take on another mode."""
_NAME = "sync"


class SyncRequest(msgspec.Struct, frozen=True):
    """The arguments of a `Mesh.sync`, besides how files are brought to hosts.

    Attributes:
        paths: files or folders.
        timeout_s: seconds to wait for a busy rank.
        reload: whether modules are reloaded, too.
        environment: how the environment is sent to hosts; None: it isn't.
    """

    paths: tuple[str | os.PathLike[str], ...] = ()
    timeout_s: float = SYNC_S
    reload: bool = True
    environment: EnvironmentChoice | None = None


def sync(mesh: Mesh, request: SyncRequest, options: SyncOptions) -> SyncReceipt:
    """Copy files to the other hosts of a mesh, and have this program and all ranks reload changed modules;
    see `Mesh.sync`.
    """
    start = time.monotonic()
    session = session_of(mesh)
    names = _absolute(request.paths)
    remote = remote_hosts(mesh)
    spaces = workspaces_of(session)
    parts: tuple[Part, ...] = spaces.bring(remote, names, options) if remote else ()
    if request.environment is not None:
        parts += brought.bring(mesh, request.environment, is_dry=options.is_dry)
    elsewhere = {index: spaces.pairs(index) for index in remote}
    paths = (names or None) if request.reload else ()
    program = _reload.reload_changed(ReloadRequest(paths, options.is_dry))
    limit = time.monotonic() + request.timeout_s
    futures: dict[int, Future[Any]] = {}
    for rank in mesh.living_ranks():
        part = mesh.part([rank])
        asked = ReloadRequest(paths, options.is_dry, elsewhere.get(part.host_indices[0], ()))
        futures[rank] = work_on(part, Work.RELOAD, asked, "sync")
    ranks, busy, lost = answers(futures, limit)
    if not options.is_dry:
        drift.compare_again(session)
    return SyncReceipt(ranks, program, busy, lost, time.monotonic() - start, options.is_dry, parts)


def remote_hosts(mesh: Mesh) -> list[int]:
    """Return the indices of the hosts of a mesh that run ranks and aren't the controller's own."""
    return [index for index in mesh.living().host_indices if index]


def before_cell(mesh: Mesh) -> None:
    """Check whether other hosts have the present files of their workspaces; act as `sync_mode` says. Hosts
    that have joined since are brought up to date.

    Costs some microseconds if nothing has been saved since.

    Raises:
        StaleCode: if they don't, and the cell isn't to run then.
    """
    newcomers.supply(mesh)
    brought.bring_changes(mesh)
    spaces = known_workspaces(session_of(mesh))
    stale = spaces.stale() if spaces is not None else []
    mode = sync_mode(mesh) if stale else SyncMode.OFF
    if mode is SyncMode.OFF:
        return
    if mode is SyncMode.WATCH:
        for followed in stale:
            _bring_changes(followed)
        return
    for followed in stale:
        text = followed.what_is_new()
        if mode is SyncMode.STRICT:
            raise StaleCode(
                f"{text}, and the cell hasn't run. Next: %mesh sync (mesh.sync()), or %mesh set sync warn"
            )
        if followed.is_unreported():
            print(
                f"{text}. Next: %mesh sync; or %mesh set sync watch, to send files before each cell",
                file=sys.stderr,
            )


def _bring_changes(followed: Followed) -> None:
    receipt = followed.bring_changes()
    if receipt is None:
        return
    if not receipt.is_done:
        lines = "\n".join(receipt.host_lines())
        raise StaleCode(
            f"hosts don't have what you have saved, and nothing was run:\n{lines}\nNext: %mesh sync "
            "when that is mended; or %mesh set sync warn"
        )
    for line in receipt.notes():
        print(line, file=sys.stderr)


def _absolute(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    found = []
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise MeshUsageError(f"sync: expected a file or folder of yours, as in 'model.py'; not {path!r}")
        name = os.path.abspath(os.path.expanduser(os.fspath(path)))
        if not os.path.exists(name):
            raise MeshUsageError(
                f"sync: there is no {os.fspath(path)!r} ({name}): expected a file or folder of yours; "
                "without any, all that has changed is reloaded"
            )
        found.append(name)
    return tuple(found)


def sync_mode(mesh: Mesh) -> SyncMode:
    """Return the mode in which ranks react to changed code."""
    return SyncMode.of(session_of(mesh).request(GetName(_NAME)) or mesh.started_with_env.get(SYNC_VARIABLE))


def set_sync_mode(mesh: Mesh, mode: str) -> None:
    """Set how ranks react to changed code, also those that replace them; busy ones once their work ends."""
    if mode not in tuple(SyncMode):
        raise MeshUsageError(f"sync_mode is one of {', '.join(SyncMode)}, not {mode!r}")
    session_of(mesh).request(SetName(_NAME, str(mode)))
    if mode != SyncMode.WATCH:
        brought.stop_following(session_of(mesh))
    with suppress(
        RankTimeout, DeviceMeshError
    ):  # busy ranks read it when their work ends; dead ones, when they are restarted
        mesh.living().set_environment({SYNC_VARIABLE: str(mode)}).get(MODE_S)
