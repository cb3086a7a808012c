"""Handles on meshes whose controller is on another machine: an envoy uses them for us (see `relay`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb._transport import process_context
from monarch_nb._wire.mesh_address import MeshAddress
from monarch_nb.actor.handle import MeshHandle, known_transport, mesh_of

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future


def needs_envoy(mesh: MeshAddress | None) -> bool:
    """Say whether a mesh can be reached from this process only through an envoy (see `relay`)."""
    if mesh is None or process_context.rank is None or process_context.is_own_mesh(mesh) or mesh.is_near:
        return False
    own = process_context.transport().mesh
    # otherwise the envoy would be no closer to that mesh than this process
    return own is not None and not own.is_near


def is_relayed(handle: MeshHandle) -> bool:
    """Say whether only an envoy can use a handle."""
    return known_transport(handle) is None and needs_envoy(mesh_of(handle))


def ask_envoy(
    handle: Any, path: Sequence[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Future[Any]:
    """Have the envoy perform a call on a handle; return a future of the result."""
    assert _ask is not None, "monarch_nb.actor loads `relay`"
    return _ask(handle, path, args, kwargs or {})


_ask: Callable[..., Future[Any]] | None = None
_make_endpoint: Callable[[Any, str], Any] | None = None


def relay_by(ask: Callable[..., Future[Any]], make_endpoint: Callable[[Any, str], Any]) -> None:
    """Set the functions that ask an envoy and make its endpoints: `relay` provides them, since it depends on
    handles.
    """
    global _ask, _make_endpoint
    _ask, _make_endpoint = ask, make_endpoint


def relayed_endpoint(mesh: Any, name: str) -> Any:
    """Return an endpoint of a handle that only an envoy can use."""
    assert _make_endpoint is not None, "monarch_nb.actor loads `relay`"
    return _make_endpoint(mesh, name)


process_context.on_remote_port(
    needs_envoy, lambda port, method, value: ask_envoy(port, (method,), (value,)).get()
)
