"""Handles on other meshes: connected to when they're first used, so that one may be passed on by a process
that has no way to its mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from monarch_nb._transport import process_context
from monarch_nb._transport.transport import Transport
from monarch_nb._wire.mesh_address import MeshAddress

if TYPE_CHECKING:
    from monarch_nb.actor.future import Future


class TransportOnDemand:
    """The attribute `_transport` of a handle. No data descriptor: once the transport is set on the handle,
    this isn't asked any more."""

    @overload
    def __get__(self, handle: None, owner: type) -> Self: ...
    @overload
    def __get__(self, handle: Any, owner: type) -> Transport: ...
    def __get__(self, handle: Any, owner: type) -> Any:
        if handle is None:
            return self
        transport = process_context.transport_in(handle._mesh)
        set_transport(handle, transport)
        handle._connected()
        return transport


def set_transport(handle: Any, transport: Transport | None, mesh: MeshAddress | None = None) -> None:
    """Let a handle belong to a mesh: by this process' transport in it, or, without one, by its address, which
    is connected to when it's needed."""
    if transport is None and process_context.is_own_mesh(mesh):
        transport = process_context.transport()
    if transport is None:
        handle._mesh = mesh
    else:
        handle.__dict__["_transport"] = transport


def mesh_of(handle: Any) -> MeshAddress | None:
    """Return where a handle's mesh is; doesn't connect."""
    transport: Transport | None = handle.__dict__.get("_transport")
    return transport.mesh if transport is not None else handle._mesh


def known_transport(handle: Any) -> Transport | None:
    """Return a handle's transport, if it has needed one yet."""
    transport: Transport | None = handle.__dict__.get("_transport")
    return transport


# --- meshes whose controller is on another machine


def needs_envoy(mesh: MeshAddress | None) -> bool:
    """Say whether a mesh can be reached from this process by an envoy only (see `relay`)."""
    if mesh is None or process_context.rank is None or process_context.is_own_mesh(mesh) or mesh.is_near:
        return False
    own = process_context.transport().mesh
    return own is not None and not own.is_near  # else the envoy would be no nearer than we are


def is_relayed(handle: Any) -> bool:
    """Say whether only an envoy can use a handle."""
    return known_transport(handle) is None and needs_envoy(handle._mesh)


def ask_envoy(
    handle: Any, path: Sequence[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Future[Any]:
    """Have the envoy do something with a handle; a future of the result."""
    assert _ask is not None, "monarch_nb.actor loads `relay`"
    return _ask(handle, path, args, kwargs or {})


_ask: Callable[..., Future[Any]] | None = None
_make_endpoint: Callable[[Any, str], Any] | None = None


def relay_by(ask: Callable[..., Future[Any]], make_endpoint: Callable[[Any, str], Any]) -> None:
    """Say how an envoy is asked, and what an endpoint is whose calls it makes: `relay` does, which is
    built on handles.
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
