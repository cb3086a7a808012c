"""The verb sync: new code on the ranks and in this notebook; and the automatic sync before each cell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from monarch_nb import _reload
from monarch_nb._commands import actions
from monarch_nb._commands.parser import Namespace
from monarch_nb._magics.state import State
from monarch_nb._reload import ReloadRequest, SyncMode
from monarch_nb._sync import known_workspaces
from monarch_nb.actor.handle import session_of, transport_of
from monarch_nb.exceptions import MeshError
from monarch_nb.mesh import shipping
from monarch_nb.mesh.brought import environment_has_changed
from monarch_nb.mesh.sync import before_cell

if TYPE_CHECKING:
    from monarch_nb.mesh import Mesh


def sync(state: State, arguments: Namespace) -> Any:
    """Send the workspace, now or continuously; with `--to`, no mesh is needed: its hosts may start there."""
    if arguments.to and arguments.env and state.current is None and not arguments.name:
        shipping.check_source(arguments.to, from_index=arguments.source == "index")
        return shipping.send_to(
            arguments.to, same_path=arguments.same_path, dry_run=arguments.dry_run, verify=arguments.verify
        )
    mesh = state.mesh(arguments.name)
    if arguments.stop:
        mesh.sync_mode = SyncMode.WARN
        print(
            f"ranks of mesh {mesh.name!r} keep the code that they have loaded, and report changes: "
            "%mesh sync reloads it"
        )
        return None
    if arguments.watch:
        mesh.sync_mode = SyncMode.WATCH
        print(
            f"ranks of mesh {mesh.name!r} reload changed modules before each cell and call from now "
            "on; %mesh sync --stop ends that"
        )
    return actions.sync(mesh, arguments)


class CodeWatch:
    """The hook before each cell of a notebook whose mesh watches code: it reloads the notebook's own modules,
    too.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def __call__(self, info: Any = None) -> None:
        """Reload changed modules; called before each cell."""
        state = self._state
        mesh = state.meshes.get(state.current or "")
        if mesh is None or transport_of(mesh).closed:
            return
        self._send_files(mesh)
        if not _reload.changed_modules() or not self._watches(mesh) or _has_autoreload(state.shell):
            return
        found = _reload.reload_changed(ReloadRequest())
        for module in found.modules:
            if module.error:
                print(f"not reloaded here, the old code stays in use: {module.error}", file=sys.stderr)
            elif module.changes or not module.is_done:
                print(("reloaded here: " if module.is_done else "") + module.summary())
        for note in found.notes:
            print(note)

    def _send_files(self, mesh: Mesh) -> None:
        """Send saved files to other hosts, if requested: the cell may call an actor there."""
        session = session_of(mesh)
        spaces = known_workspaces(session)
        has_changed = environment_has_changed(session) or (spaces is not None and spaces.stale())
        if not has_changed or not self._watches(mesh):
            return
        try:
            before_cell(mesh)
        except MeshError as error:
            print(error, file=sys.stderr)

    def _watches(self, mesh: Mesh) -> bool:
        try:
            return mesh.sync_mode is SyncMode.WATCH
        except Exception:  # the mesh has just ended: the cell reports it if it needs the mesh
            return False


def _has_autoreload(shell: Any) -> bool:
    """Return whether `%autoreload` is active."""
    reloader = getattr(sys.modules.get("IPython.extensions.autoreload"), "AutoreloadMagics", None)
    found = [getattr(callback, "__self__", None) for callback in shell.events.callbacks["pre_run_cell"]]
    return reloader is not None and any(
        isinstance(each, reloader) and each._reloader.enabled for each in found
    )


def read_mode(mesh: Mesh | None) -> str:
    """Return the present mode."""
    assert mesh is not None
    return mesh.sync_mode


def set_mode(mesh: Mesh | None, text: str) -> None:
    """Set the mode.

    Raises:
        ValueError: if there is none of that name.
    """
    assert mesh is not None
    mesh.sync_mode = SyncMode(text)
