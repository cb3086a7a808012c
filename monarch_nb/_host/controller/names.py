"""Keeps values of a mesh by name."""

from __future__ import annotations

from monarch_nb._host.controller.registry import Registry
from monarch_nb._protocol.base import Plain
from monarch_nb._protocol.names import GetMesh, GetName, GroupRecord, SetMesh, SetName
from monarch_nb._protocol.registry import Sender, handles


class NameService:
    """The service that keeps values by name. Owned by the loop thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._names = registry.names

    @handles(SetName)
    def do_set_name(self, request: SetName, sender: Sender) -> Plain:
        """Store a value under a name; with `only_if_new`, an existing value is kept. Returns the value stored
        now.
        """
        if request.only_if_new and request.name in self._names:
            return self._names[request.name]
        self._names[request.name] = request.value
        return request.value

    @handles(SetMesh)
    def do_set_mesh(self, request: SetMesh, sender: Sender) -> None:
        """Record the ranks that have the mesh's name."""
        self._registry.mesh = request.record

    @handles(GetMesh)
    def do_get_mesh(self, request: GetMesh, sender: Sender) -> GroupRecord | None:
        """Return the record of the ranks that have the mesh's name; None if there are none."""
        return self._registry.mesh

    @handles(GetName)
    def do_get_name(self, request: GetName, sender: Sender) -> Plain:
        """Return the value stored under a name, or None."""
        return self._names.get(request.name)
