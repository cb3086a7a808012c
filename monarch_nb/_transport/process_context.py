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
        """How many ranks its mesh has now."""

    @property
    def transport(self) -> Transport:
        """Its sockets in its own mesh."""

    @property
    def page(self) -> ActivityPage:
        """Where it says what it does."""

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
        """Take note that this process has come to another mesh as a guest."""


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
    """Return this process' transport in a mesh, which handles name; without one, `transport()`. May connect,
    which takes some milliseconds.

    Raises:
        MeshUnreachable: if there's no way from here to that mesh.
    """
    own = _transport
    if own is not None and (mesh is None or own.mesh_id == mesh.mesh_id) and not own.closed:
        return own
    return transport() if mesh is None or _reach is None else _reach(mesh)


def is_own_mesh(mesh: MeshAddress | None) -> bool:
    """Say whether `transport()` is one in that mesh, as far as that can be said without connecting."""
    return mesh is None or (
        _transport is not None and not _transport.closed and _transport.mesh_id == mesh.mesh_id
    )


def set_transport(new: Transport | None) -> None:
    """Say which transport this process has."""
    global _transport
    _transport = new


def on_demand(connect: Callable[[], Transport]) -> None:
    """Say how to get a transport when one is needed."""
    global _connect
    _connect = connect


def on_other_mesh(reach: Callable[[MeshAddress], Transport]) -> None:
    """Say how to get a transport in a mesh that isn't this process' own."""
    global _reach
    _reach = reach


def on_remote_port(
    is_remote: Callable[[MeshAddress | None], bool], send: Callable[[Any, str, Any], None]
) -> None:
    """Say how something is sent to a port of a mesh that can't be reached from this process: by its
    method's name, and the value.
    """
    global _is_remote, _send_remote
    _is_remote, _send_remote = is_remote, send


def is_sent_remotely(port: Any, method: str, value: Any) -> bool:
    """Send something to a port, if its mesh can't be reached from this process; say whether that was done."""
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
    """Say where this process stands: rank, host."""
    _where.update(where)


def hostname() -> str:
    """Return the name that this process' host goes by in its mesh, or the machine's."""
    return str(_where.get("host") or os.uname().nodename)


def whereabouts() -> Whereabouts:
    """Return where this process stands."""
    return _where.copy()
