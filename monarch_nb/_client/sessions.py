"""The sessions of this program, by their offices: for those whom the session itself uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_nb._client.session import Session
    from monarch_nb._post.office import Office

by_office: dict[int, Session] = {}


def known(office: Office) -> Session | None:
    """Return the session that uses `office`, if there is one."""
    return by_office.get(id(office))
