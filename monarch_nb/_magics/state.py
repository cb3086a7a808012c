"""The meshes that this kernel is connected to, and the current one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch_nb._client.sessions import known
from monarch_nb._commands.values import DEFAULT_NAME
from monarch_nb._protocol.programs import InUse
from monarch_nb.actor.handle import placement_of, session_of, transport_of
from monarch_nb.exceptions import MeshNotFound, MeshUsageError

if TYPE_CHECKING:
    from monarch_nb._transport.transport import Transport
    from monarch_nb.mesh import Mesh


class State:
    """The state of the magics of one kernel."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.meshes: dict[str, Mesh] = {}
        self.current: str | None = None
        self.last_async: dict[str, int] = {}
        """Number of the last cell that `--async` has started, by mesh."""

    def mesh(self, name: str | None = None) -> Mesh:
        """Return a mesh by name, or the current one."""
        if name is None:
            name = self.current
        if name is None:
            raise MeshUsageError("no mesh is in use. Start one: %mesh start; or see what runs: %mesh list")
        transport = transport_of(self.meshes[name]) if name in self.meshes else None
        if transport is not None and transport.lost:
            return self._after_end(name, transport)
        if transport is None or transport.closed:
            return self.attach(name)
        return self.meshes[name]

    def named(self, names: tuple[str, ...] | None) -> list[Mesh]:
        """Return meshes by their names, or the current one. The current mesh stays the same, if there is
        one.
        """
        before = self.current
        found = [self.mesh(name) for name in names] if names is not None else [self.mesh()]
        if len(found) > 1:
            self.go_back(before)
        return found

    def _after_end(self, name: str, transport: Transport) -> Mesh:
        """Return the running mesh with the name of one that has ended; if there is none, raise how that one
        ended.
        """
        try:
            return self.attach(name)
        except MeshNotFound:
            raise transport.closing_error() from None

    def attach(self, name: str | None) -> Mesh:
        """Connect to a running mesh, unless this kernel is connected to it, and make it current."""
        from monarch_nb import mesh as meshes
        from monarch_nb._client.launch import find_connection

        connection = find_connection(name)
        known = self.meshes.get(connection.name)
        if known is not None and session_of(known).is_open_to(connection):
            return self.adopt(known)
        mesh = meshes.attach(connection.name)
        if any(placement_of(mesh).hosts):  # a mesh on the controller's machine alone isn't an engine's
            from monarch_nb.mesh.allocation_status import follow

            follow(mesh.name, session_of(mesh))
        return self.adopt(mesh)

    def go_back(self, name: str | None) -> None:
        """Make the previous mesh current again, if there was one."""
        if name is not None and name in self.meshes:
            self.adopt(self.meshes[name])

    def adopt(self, mesh: Mesh) -> Mesh:
        """Make a mesh current, and bind its name in the notebook."""
        from monarch_nb._client import session

        before = self.meshes.get(mesh.name)
        lost = (
            known(transport_of(before))
            if before is not None and before is not mesh and transport_of(before).lost
            else None
        )
        if lost is not None:
            lost.close()
        self.meshes[mesh.name] = mesh
        self.current = mesh.name
        session.use(session_of(mesh))
        session_of(mesh).tell(InUse())
        self.shell.user_ns[mesh.name.replace("-", "_")] = mesh
        if mesh.name != DEFAULT_NAME:
            self.shell.user_ns[DEFAULT_NAME] = mesh
        return mesh

    def drop(self, name: str) -> None:
        """Drop a mesh, and the names bound by `adopt`. Other names for it belong to the user."""
        mesh = self.meshes.pop(name, None)
        for variable in (name.replace("-", "_"), DEFAULT_NAME):
            if mesh is not None and self.shell.user_ns.get(variable) is mesh:
                del self.shell.user_ns[variable]
        self.last_async.pop(name, None)
        if self.current == name:
            self.current = None
            if self.meshes:
                self.adopt(next(reversed(self.meshes.values())))
