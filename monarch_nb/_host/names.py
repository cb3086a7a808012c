"""What goes by which name in a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch_nb._wire.message import Message

if TYPE_CHECKING:
    from monarch_nb._host.home import HomeProcess


class NameDesk:
    """Owned by the loop thread."""

    def __init__(self, home: HomeProcess) -> None:
        self._home = home
        self._names = home.registry.names

    def do_set_name(self, message: Message, fields: dict[str, Any]) -> object:
        """Enter something under a name; `only_if_new` makes the first one win. Returns what is there now."""
        if fields.get("only_if_new") and fields["name"] in self._names:
            return self._names[fields["name"]]
        self._names[fields["name"]] = fields["value"]
        return fields["value"]

    def do_get_name(self, message: Message, fields: dict[str, Any]) -> object:
        """Return what was entered under a name, or None."""
        return self._names.get(fields["name"])
