"""The sessions of this program by their transports, for modules that the session itself imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_nb._client.session import Session
    from monarch_nb._transport.transport import Transport

by_transport: dict[int, Session] = {}


def known(transport: Transport) -> Session | None:
    """Return the session that uses `transport`, if there is one."""
    return by_transport.get(id(transport))
