"""The base class of handles on meshes: placement of the members, this process' transport to them, and the
actor that owns them.

A handle's names are its users' (an endpoint is an attribute of its actor mesh), so what the rest of the
package needs of a handle it gets by the functions of this module. One that has come in a message connects
when it's first used, so that it may be passed on by a process that has no way to its mesh.
"""

from __future__ import annotations

from typing import Any

from monarch_nb._client import session as sessions
from monarch_nb._client.session import Session
from monarch_nb._shape import Extent, MeshTrait, Shape
from monarch_nb._transport import process_context
from monarch_nb._transport.context import call_context
from monarch_nb._transport.transport import Transport
from monarch_nb._wire import address
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb.actor.placement import Placement


class MeshHandle(MeshTrait):
    """The base of handles on meshes.

    Args:
        placement: processes of the members.
        transport: this process' transport in that mesh; without one, it's looked up when it's needed.
        mesh: address of that mesh; None: this process' own mesh.
    """

    def __init__(
        self, placement: Placement, transport: Transport | None = None, mesh: MeshAddress | None = None
    ) -> None:
        if transport is None and process_context.is_own_mesh(mesh):
            transport = process_context.transport()
        self._placement = placement
        self._known_transport = transport
        self._mesh = mesh
        self._owner: Any = None
        """The actor of this process that has spawned it, and with which it ends."""

    @property
    def _shape(self) -> Shape:
        return self._placement.shape

    @property
    def _transport(self) -> Transport:
        """This process' transport in that mesh; may connect."""
        found = self._known_transport
        if found is None:
            found = self._known_transport = process_context.transport_in(self._mesh)
            self._connected()
        return found

    @property
    def _session(self) -> Session:
        """This process' session in that mesh; may connect."""
        return sessions.of_transport(self._transport)

    def _connected(self) -> None:
        """Prepare a subclass once this process has connected to the mesh of the handle."""


# --- for the rest of the package


def placement_of(handle: MeshHandle) -> Placement:
    """Return the placement of a mesh's members. It's replaced by a heal or a resize: don't keep it.

    Example:
        >>> placement_of(procs).procs                     # doctest: +SKIP
        (3, 4)
    """
    return handle._placement


def whole_of(handle: MeshHandle) -> Any:
    """Return the handle of the whole spawn that a slice is of, in one dimension; `handle` itself if that's
    all.
    """
    placement = handle._placement
    if placement.is_whole:
        return handle
    return handle._with_shape(Shape.full(Extent(["ranks"], [len(placement.all_procs)])))


def transport_of(handle: MeshHandle) -> Transport:
    """Return this process' transport in the mesh of a handle; connects if it must.

    Raises:
        MeshUnreachable: if there's no way from here to that mesh.
    """
    return handle._transport


def session_of(handle: MeshHandle) -> Session:
    """Return this process' session in the mesh of a handle, through which requests to the controller are
    sent.

    Raises:
        MeshUnreachable: if there's no way from here to that mesh.
        MeshError: if this program has left it.

    Example:
        >>> session_of(mesh).request(Status()).procs      # doctest: +SKIP
    """
    return handle._session


def mesh_of(handle: MeshHandle) -> MeshAddress | None:
    """Return the address of a handle's mesh; doesn't connect."""
    transport = handle._known_transport
    return transport.mesh if transport is not None else handle._mesh


def known_transport(handle: MeshHandle) -> Transport | None:
    """Return a handle's transport, if it has been used."""
    return handle._known_transport


def is_on_other_hosts(handle: MeshHandle) -> bool:
    """Say whether some of these processes are under another host process than this program."""
    here = transport_of(handle).host
    return any(address.host_of(proc) != here for proc in placement_of(handle).procs)


# --- the owner


def own_by_caller(handle: MeshHandle) -> None:
    """Make the running actor, if there is one, the owner of a new spawn: the spawn ends with that actor."""
    handle._owner = call_context.get().actor
    if handle._owner is not None:
        handle._owner.owns(handle)


def disown(handle: MeshHandle) -> None:
    """Make a spawn independent of any owner here."""
    if handle._owner is not None:
        handle._owner.disowns(handle)
        handle._owner = None
