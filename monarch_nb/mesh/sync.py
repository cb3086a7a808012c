"""Brings new code to all ranks: reports which modules were reloaded where, and sets how ranks react to
changed files.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from monarch_nb import _reload
from monarch_nb._display.transfer_bar import show_until_over
from monarch_nb._protocol.names import GetName, SetName
from monarch_nb._protocol.work import Work
from monarch_nb._reload import SYNC_VARIABLE, ReloadRequest, SyncMode
from monarch_nb._sync import Followed, Part, SyncOptions, SyncReceipt, known_workspaces, workspaces_of
from monarch_nb._units import elapsed_text
from monarch_nb.actor.handle import session_of
from monarch_nb.actor.proc_mesh import work_on
from monarch_nb.actor.workspace import answers
from monarch_nb.exceptions import DeviceMeshError, MeshError, MeshUsageError, RankTimeout, StaleCode
from monarch_nb.mesh import drift, newcomers, shipping

if TYPE_CHECKING:
    from monarch_nb._client.session import Session
    from monarch_nb._sync.env.edits import Edit
    from monarch_nb._sync.env.scan import Scanned
    from monarch_nb.actor.future import Future
    from monarch_nb.mesh.core import Mesh
    from monarch_nb.mesh.shipping.report import EnvironmentPart

SYNC_S = 10.0
BAR_AFTER_S = 1.0
"""Work that takes longer is displayed while it lasts."""
MODE_S = 1.0
"""How long to wait for ranks to take on another mode."""
_NAME = "sync"
_followed: weakref.WeakKeyDictionary[Session, shipping.FollowedEnvironment] = weakref.WeakKeyDictionary()
"""This program's environment, for meshes whose hosts are kept up to date with it."""


class EnvironmentChoice(msgspec.Struct, frozen=True):
    """The choices for bringing the environment of this program to hosts.

    Attributes:
        verify: whether every file here is read.
        copies: whether hosts that see this program's files get a copy, too.
        machines: machines other than the mesh's hosts, which need `sh` and `tar` only: names for ssh, or
            commands.
        same_path: whether these get a link to it at the environment's own path.
        watch: whether packages installed or edited later are sent before the next cell.
    """

    verify: bool = False
    copies: bool = False
    machines: tuple[str, ...] = ()
    same_path: bool = False
    watch: bool = False


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
        parts += _environment(mesh, request.environment, is_dry=options.is_dry)
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


def _environment(mesh: Mesh, choice: EnvironmentChoice, *, is_dry: bool) -> tuple[Part, ...]:
    """Send the environment of this program to all hosts that run ranks, and to named machines."""
    followed = shipping.FollowedEnvironment(copies=choice.copies) if choice.watch and not is_dry else None
    progress = shipping.Progress()
    over = show_until_over(progress, BAR_AFTER_S)
    others: tuple[Part, ...] = ()
    try:
        if choice.machines:
            others = (
                shipping.send_to(
                    choice.machines, same_path=choice.same_path, dry_run=is_dry, verify=choice.verify,
                    progress=progress,
                ),
            )  # fmt: skip
        part, scanned = shipping.with_scan(
            lambda found: (_send(mesh, found, progress, copies=choice.copies, is_dry=is_dry), found),
            verify=choice.verify,
        )
        progress.step(f"{progress.sent_text()} in {elapsed_text(part.seconds)}")
    except BaseException:
        if followed is not None:
            followed.close()
        raise
    finally:
        over()
    if followed is not None:
        _stop_following(session_of(mesh))
        followed.sent(session_of(mesh), part, scanned)
        _followed[session_of(mesh)] = followed
    return (part, *others)


def _send(
    mesh: Mesh, scanned: Scanned, progress: shipping.Progress, *, copies: bool, is_dry: bool = False
) -> EnvironmentPart:
    """Send an environment to all hosts that run ranks; return also the ranks that run another one."""
    hosts = mesh.living().host_indices
    return _with_old_ranks(
        mesh,
        shipping.send_environment(
            session_of(mesh), hosts, scanned, copies=copies, dry_run=is_dry, progress=progress
        ),
    )


def _patch(mesh: Mesh, edit: Edit, before: EnvironmentPart) -> EnvironmentPart | None:
    """Bring edited files to all hosts that run ranks, if these have the rest; see `_send`."""
    part = shipping.patch_environment(session_of(mesh), mesh.living().host_indices, edit, before)
    return None if part is None else _with_old_ranks(mesh, part)


def _with_old_ranks(mesh: Mesh, part: EnvironmentPart) -> EnvironmentPart:
    changed = {host for host, each in part.hosts.items() if each.has_changed}
    living = mesh.living_ranks()
    old = tuple(rank for rank in living if mesh.part([rank]).host_indices[0] in changed)
    return replace(part, old_ranks=old)


def environment_has_changed(session: Session) -> bool:
    """Say whether this program's environment is followed, and has changed since it was sent."""
    followed = _followed.get(session)
    return followed is not None and followed.has_changed()


def _bring_environment(mesh: Mesh) -> None:
    """Send packages that were installed or edited since; errors are printed, and ranks continue with what
    they have.
    """
    followed, progress = _followed[session_of(mesh)], shipping.Progress()
    over = show_until_over(progress, BAR_AFTER_S)
    try:
        part = followed.bring_changes(
            session_of(mesh),
            lambda scanned: _send(mesh, scanned, progress, copies=followed.copies),
            lambda edit, before: _patch(mesh, edit, before),
        )
    except MeshError as error:
        print(f"the environment has changed, and isn't sent: {error}", file=sys.stderr)
        return
    finally:
        over()
    if part is not None:
        print("\n".join(part.lines()), file=sys.stderr)


def _stop_following(session: Session) -> None:
    followed = _followed.pop(session, None)
    if followed is not None:
        followed.close()


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
    if environment_has_changed(session_of(mesh)):
        _bring_environment(mesh)
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
        _stop_following(session_of(mesh))
    with suppress(
        RankTimeout, DeviceMeshError
    ):  # busy ranks read it when their work ends; dead ones, when they are restarted
        mesh.living().set_environment({SYNC_VARIABLE: str(mode)}).get(MODE_S)
