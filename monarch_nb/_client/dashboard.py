"""Finds the dashboard page that shows a mesh: on the Jupyter server that this kernel belongs to, or on
`monarch-nb dashboard`'s.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from monarch_nb._client.launch import runtime_directory
from monarch_nb.exceptions import MeshUsageError

HOST = "127.0.0.1"


class Place(msgspec.Struct, frozen=True):
    """The address of a dashboard page, served by one process.

    Attributes:
        url: address of the page, without a token.
        token: secret that gives its reader access.
    """

    pid: int
    url: str
    token: str

    def link(self, mesh: str = "") -> str:
        """Return an address that opens the page."""
        return f"{self.url}?token={self.token}" + (f"&mesh={mesh}" if mesh else "")


def place_file() -> Path:
    """Return the path of the file with the dashboard's address."""
    return Path(runtime_directory()) / "monarch_nb_dashboard.json"


def find_dashboard() -> Place | None:
    """Return the address of this user's dashboard, if one is running."""
    try:
        place = Place(**json.loads(place_file().read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return place if _answers(place) else None


def _answers(place: Place) -> bool:
    """Return whether the dashboard still answers; another process may have its pid, or its port."""
    from http.client import HTTPConnection, HTTPException
    from urllib.parse import urlsplit

    parts = urlsplit(place.url)
    connection = HTTPConnection(parts.hostname or HOST, parts.port, timeout=2.0)
    try:
        connection.request(
            "GET", "/monarch_nb/api/version", headers={"Authorization": f"token {place.token}"}
        )
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def dashboard_url(mesh: str) -> str:
    """Return an address that shows a mesh: on the Jupyter server whose kernel this is, otherwise on the
    running dashboard.

    Raises:
        MeshUsageError: if there's neither, saying how to start one.
    """
    server = _jupyter_server()
    if server:
        return f"{server}monarch_nb/dashboard?mesh={mesh}"
    place = find_dashboard()
    if place is None:
        raise MeshUsageError("no dashboard is running. Start one in a terminal: monarch-nb dashboard")
    return place.link(mesh)


def _jupyter_server() -> str:
    """Return the base of the Jupyter server that has started this kernel, if it has our extension. Its
    reader is logged in there already: no token.
    """
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    parent = os.environ.get("JPY_PARENT_PID", "")
    if not parent.isdigit():
        return ""
    try:
        found = json.loads((Path(runtime_directory()) / f"jpserver-{parent}.json").read_text())
        url, token = str(found["url"]), str(found.get("token", ""))
        request = Request(f"{url}monarch_nb/api/version", headers={"Authorization": f"token {token}"})
        with urlopen(request, timeout=2.0) as answer:
            return url if "protocol" in json.loads(answer.read()) else ""
    except (OSError, ValueError, KeyError, TypeError, URLError):
        return ""
