"""The context of this process: its transport, once it has one, and its place in the mesh."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from monarch_nb._cells import Namespace
from monarch_nb._transport.transport import Transport
from monarch_nb._wire.mesh_address import MeshAddress

if TYPE_CHECKING:
    from monarch_nb._wire.activity_page import ActivityPage


class Whereabouts(TypedDict, total=False):
    """The place of a process in its mesh: its rank, or "client"; the name of its host; its pid."""

    rank: int | str
    host: str
    pid: int


class CallPlace(Whereabouts):
    """The place of a running call: its process, and the names of its actor mesh and its endpoint."""

    actor: str
    endpoint: str


class RankContext(Protocol):
    """The interface to this process as a rank, for the rooms below `_rank`."""

    @property
    def rank(self) -> int:
        """Its number in the mesh."""

    @property
    def world_size(self) -> int:
        """The present number of ranks in its mesh."""

    @property
    def transport(self) -> Transport:
        """Its transport in its own mesh."""

    @property
    def page(self) -> ActivityPage:
        """Its activity page."""

    @property
    def group(self) -> str:
        """The name of the processes that it was spawned with."""

    @property
    def extent(self) -> bytes:
        """Their extent, encoded."""

    @property
    def python(self) -> str | None:
        """The interpreter that its host has for ranks, if not the controller's."""

    @property
    def namespace(self) -> Namespace:
        """The variables of its cells."""

    def variables(self, names: Sequence[str]) -> Namespace:
        """Return some of them.

        Raises:
            NameError: naming those that aren't defined.
        """

    def receive_guest(self, transport: Transport) -> None:
        """Record that this process is a guest of another mesh."""


_transport: Transport | None = None
_connect: Callable[[], Transport] | None = None
_reach: Callable[[MeshAddress], Transport] | None = None
_is_remote: Callable[[MeshAddress | None], bool] | None = None
_send_remote: Callable[[Any, str, Any], None] | None = None
_where: Whereabouts = {}
rank: RankContext | None = None
"""The rank that this process is, or None in a client."""
guest_transports: list[Transport] = []
"""In a rank: its transports in other meshes."""


def transport() -> Transport:
    """Return this process' transport; a client without one connects first."""
    if _transport is None or _transport.closed:
        if _connect is None:
            raise RuntimeError("this process is not connected to a mesh")
        return _connect()
    return _transport


def transport_in(mesh: MeshAddress | None) -> Transport:
    """Return this process' transport in a mesh that a handle names; without one, `transport()`. May connect,
    which takes some milliseconds.

    Raises:
        MeshUnreachable: if there's no way from here to that mesh.
    """
    own = _transport
    if own is not None and (mesh is None or own.mesh_id == mesh.mesh_id) and not own.closed:
        return own
    return transport() if mesh is None or _reach is None else _reach(mesh)


def is_own_mesh(mesh: MeshAddress | None) -> bool:
    """Say whether `transport()` belongs to that mesh, as far as that is known without connecting."""
    return mesh is None or (
        _transport is not None and not _transport.closed and _transport.mesh_id == mesh.mesh_id
    )


def set_transport(new: Transport | None) -> None:
    """Set this process' transport."""
    global _transport
    _transport = new


def on_demand(connect: Callable[[], Transport]) -> None:
    """Set the function that makes a transport when one is needed."""
    global _connect
    _connect = connect


def on_other_mesh(reach: Callable[[MeshAddress], Transport]) -> None:
    """Set the function that makes a transport in a mesh that isn't this process' own."""
    global _reach
    _reach = reach


def on_remote_port(
    is_remote: Callable[[MeshAddress | None], bool], send: Callable[[Any, str, Any], None]
) -> None:
    """Set the function that sends to a port of a mesh that this process can't reach, given the method's name
    and the value.
    """
    global _is_remote, _send_remote
    _is_remote, _send_remote = is_remote, send


def is_sent_remotely(port: Any, method: str, value: Any) -> bool:
    """Send a value to a port through an envoy, if this process can't reach the port's mesh; return whether
    that was done.
    """
    if is_own_mesh(port.mesh) or _is_remote is None or _send_remote is None or not _is_remote(port.mesh):
        return False
    _send_remote(port, method, value)
    return True


def this_rank() -> RankContext:
    """Return the rank that this process is.

    Raises:
        RuntimeError: in a client.
    """
    if rank is None:
        raise RuntimeError("this process is no rank of a mesh")
    return rank


def set_whereabouts(**where: Unpack[Whereabouts]) -> None:
    """Set the place of this process: rank, host."""
    _where.update(where)


def hostname() -> str:
    """Return the name of this process' host in its mesh, or the machine's name."""
    return str(_where.get("host") or os.uname().nodename)


def whereabouts() -> Whereabouts:
    """Return the place of this process."""
    return _where.copy()
