"""Who this process is: its office, once it has one, and where it stands in the mesh."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from monarch_nb._post.office import Office

_office: Office | None = None
_connect: Callable[[], Office] | None = None
_where: dict[str, Any] = {}
rank: Any = None
"""The rank that this process is (`_rank.main.Rank`), or None in a client."""


def office() -> Office:
    """Return this process' office; a client without one connects first."""
    if _office is None or _office.closed:
        if _connect is None:
            raise RuntimeError("this process is not connected to a mesh")
        return _connect()
    return _office


def set_office(new: Office | None) -> None:
    """Say which office this process has."""
    global _office
    _office = new


def on_demand(connect: Callable[[], Office]) -> None:
    """Say how to get an office when one is needed."""
    global _connect
    _connect = connect


def set_whereabouts(**where: Any) -> None:
    """Say where this process stands: rank, host."""
    _where.update(where)


def hostname() -> str:
    """Return the name that this process' host goes by in its mesh, or the machine's."""
    return str(_where.get("host") or os.uname().nodename)


def whereabouts() -> dict[str, Any]:
    """Return where this process stands."""
    return dict(_where)
