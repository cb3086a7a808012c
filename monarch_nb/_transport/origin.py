"""Determines the origin of messages to a mesh: the cell or program on whose behalf they are sent."""

from __future__ import annotations

from monarch_nb._journal.record import is_cell
from monarch_nb._transport.context import call_context
from monarch_nb._transport.transport import Transport


def origin_in(transport: Transport) -> int:
    """Return the origin of the running code's messages to a mesh. A cell's number is valid in its own mesh
    only.
    """
    origin = call_context.get().origin
    return 0 if transport.is_guest and is_cell(origin) else origin
